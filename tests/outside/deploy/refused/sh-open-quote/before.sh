#!/bin/sh
vllm serve acme/translator-7b --max-num-seqs 64 "$(x)$(x)$(x)$(x)$(x)$(x)$(x)$(x)$(x)$(x)$(x)$(x)$(x)$(x)$(x)$(x)$(x)$(x)$(x)$(x)$(x)$(x)$(x)$(x)$(x)$(x)$(x)$(x)$(x)$(x)$(x)$(x)$(x)$(x)$(x)$(x)$(x)$(x)$(x)$(x)
