"""The search as Optuna keeps it: space, trials, storages shared between runs, importances."""
