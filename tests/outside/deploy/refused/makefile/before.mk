IMAGE ?= vllm/vllm-openai:v0.32.0
MODEL ?= acme/translator-7b
.PHONY: run
run:
	docker run --rm -it --gpus all -p 8000:8000 \
	  -v $(HOME)/.cache/huggingface:/root/.cache/huggingface \
	  $(IMAGE) --model $(MODEL) --max-num-seqs 256
