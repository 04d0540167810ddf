"""What several commands share: options, run folders, the console."""
