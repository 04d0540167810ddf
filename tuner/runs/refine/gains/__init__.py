"""What trials and pairs of replays show of a gain over the knee, and when it is proven."""
