"""The server's end of the control socket: limits changed while it serves, audited."""
