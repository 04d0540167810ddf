resource "x" "y" {
  command = ["vllm", "serve", "acme/translator-7b"]
}
