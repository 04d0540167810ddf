# A notebook as a file: each "# %%" begins a cell. Jupyter and editors run it cell by cell.

# %% Tune a simulated machine for a trace: leave out the world for a real vLLM.
import tuner

run = tuner.sweep("translation.jsonl", world="article.yaml", output="profile.yaml")
print(run)

# %% What to start vLLM with.
profile = tuner.load_profile("profile.yaml")
arguments = profile.engine_args()
print(arguments["max_num_seqs"], profile.verdict, profile.confidence)

# %% The curve, a record for each step: pandas.DataFrame(profile.curve()) makes a table of it.
for step in profile.curve():
    print(step["max_num_seqs"], step["attainment"], step["tpot_p95_s"], step["chosen"])

# %% Every request that was sent, and how long the slowest of those that were served took.
served = [one for one in run.requests() if one["outcome"] == "ok"]
slowest_s = max(one["e2el_s"] for one in served)
print(len(served), slowest_s)
