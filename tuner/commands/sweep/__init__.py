"""``tuner sweep``: find max_num_seqs for a trace."""
