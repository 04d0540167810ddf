FROM python:3.12
RUN pip install vllm
CMD vllm serve acme/translator-7b --max-num-seqs 256
