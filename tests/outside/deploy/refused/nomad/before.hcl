job "vllm" {
  group "llm" {
    task "serve" {
      driver = "docker"
      config {
        image = "vllm/vllm-openai:v0.32.0"
        args  = ["--model", "acme/translator-7b", "--max-num-seqs", "256"]
      }
    }
  }
}
