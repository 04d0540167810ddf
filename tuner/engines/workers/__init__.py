"""Ways of serving that are only compared: worker processes behind queues, real or simulated."""
