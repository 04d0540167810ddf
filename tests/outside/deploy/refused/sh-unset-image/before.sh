docker run $IMAGE --model acme/translator-7b --max-num-seqs 64
