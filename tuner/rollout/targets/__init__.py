"""Files that people deploy with: read as whoever deploys them reads them, edited in place."""
