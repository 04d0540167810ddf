# A notebook as a file: each "# %%" begins a cell. Jupyter and editors run it cell by cell.

# %% Tune a simulated machine for a trace: leave out the world for a real vLLM.
import tuner

profile = tuner.sweep("translation.jsonl", world="article.yaml", run_dir="run")
print(tuner.summary(profile))

# %% What to start vLLM with.
profile = tuner.load_profile("profile.yaml")
arguments = tuner.engine_args(profile)
print(arguments["max_num_seqs"], profile.decision.verdict, profile.decision.confidence)

# %% The curve, a record for each step: pandas.DataFrame(tuner.curve(profile)) makes a table of it.
for step in tuner.curve(profile):
    print(step["max_num_seqs"], step["attainment"], step["tpot_p95_s"], step["chosen"])

# %% Every request that was sent, and how long the slowest of those that were served took.
served = [row for row in tuner.table("run", "requests") if row["outcome"] == "ok"]
slowest_s = max(row["last_s"] - row["planned_s"] for row in served)
print(len(served), slowest_s)
