export CUDA_VISIBLE_DEVICES=0
nohup vllm serve acme/translator-7b --max-num-seqs 16 > vllm.log 2>&1 &
echo $! > vllm.pid
