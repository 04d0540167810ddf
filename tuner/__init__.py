"""Find the right max_num_seqs for a vLLM server from the traffic that it really gets.

The map, in reading order; data flows downwards.

What production saw
    trace                    requests: read, checked, cut and written
    trace_parts              a part of them by length or by server
    formats                  the registry of trace formats, one module each
    formats.canonical        tuner's own: JSON lines, a superset of Mooncake's
    formats.mooncake         Mooncake's traces and their like
    formats.azure2023        Azure's LLM inference traces of 2023
    formats.azure2024        those of 2024
    formats.azure_lmm2025    those of 2025, with images
    formats.burstgpt         BurstGPT's traces
    formats.bailian          Alibaba's Qwen-Bailian traces
    formats.aiperf           aiperf's sessions
    formats.guidellm         GuideLLM's replay files
    formats.timed_trace      input of vLLM's timed_trace benchmark
    formats.weka             WEKA's traces of coding agents
    formats.swissai          SwissAI's serving trace
    formats.tracelab         TraceLab's rounds of coding agents
    formats.llmservingsim    LLMServingSim's benchmark records of vLLM
    formats.vllm_bench       detailed results of `vllm bench serve`
    formats.vllm_otlp        vLLM's own spans
    formats.otel_genai       spans of OpenTelemetry, OpenLLMetry and OpenInference
    formats.litellm          LiteLLM's spend logs and logging payloads
    formats.langfuse         Langfuse's observations
    formats.envoy            Envoy AI gateway's access logs
    formats.nginx            nginx's access logs
    formats.record           one request as it stands in a file
    formats.source           what a trace file says of itself, and its rows
    formats.replayable       a trace as the plain rows that other tools replay
    formats.csv_rows         rows from lines of cells, likewise
    formats.azure            rows of Azure's traces, whatever their columns
    formats.recent           what was said of the last so many requests
    formats.json_rows        rows from JSON objects, for every format that is written so
    formats.exports          rows as gateways and observability tools export them
    formats.json_values      JSON values in an array, or over several lines each
    formats.lines            the rows of a file of any size, as bytes
    formats.concurrency_schedule  how many are to be in flight, and when: no trace by itself
    formats.refused          files that look like traces and can be none
    formats.otlp             spans as OTLP/JSON, and the requests in them
    formats.scalars          counts, times and flags as other programs write them
    formats.same_request     rows that are one request: n > 1, spans above spans, retries
    stream                   trace files too large for memory: looked through, imported, cut
    capture                  what a server loads to record its traffic
    capture.recorder         the ASGI middleware
    capture.engine_tap       what goes into the server's engine and comes out of it
    capture.exchange         one HTTP request and its calls to the engine
    capture.call             one call to the engine, and the row it becomes
    capture.usage            lengths as a server tells its clients
    capture.prefix_ids       which prompts begin alike, and nothing of what they say
    capture.stat_logger      the engine's own view, as a plug-in of vLLM
    capture.spool            a recording's files, off the event loop
    capture.environment      what the environment says of a recording
    capture.prometheus_api   samples out of a Prometheus
    capture.history          what it remembers of vLLM's engines
    capture.synthetic        requests that fit what was scraped
    capture.joined           one trace out of a recording's files

What it says, before anything is run
    traffic                  how many, how bursty, how long, how many at a time
    traffic.columns          a trace as columns, 40 bytes a request
    traffic.arrivals         rate, burstiness, the clock's grid, the busiest time
    traffic.concurrency      how many requests at a time, in flight and running
    traffic.levels           how many of some intervals hold at each time
    traffic.routing          which replica gets which request
    traffic.held             requests that hold a given concurrency
    traffic.scaling          more or less load from the same traffic
    traffic.part             how a part of a trace compares with the whole
    traffic.summary          all of it at once
    traffic.cautions         what to beware of
    prompts                  token ids with the trace's lengths and shared prefixes
    slo                      the objective that one request must meet
    sessions                 which request waits for which, in closed loop
    window                   which part of the trace is tuned for, and the plan that sends it
    sampling                 which windows stand for a part too long to be replayed
    workload                 what a sweep tunes for: requests, SLO, windows

What serves it
    engines.seam             what every engine offers; types only
    base                     which engine arguments a run begins with
    engines.vllm             how engines of vLLM come into being
    engines.vllm_arguments   vLLM's arguments as text, read as vLLM reads them
    engines.vllm_config      vLLM's arguments: checked, pinned, resolved
    engines.vllm_engine      a running AsyncLLM
    engines.vllm_llm         AsyncLLM: made, asked, closed
    engines.logged_scheduler  vLLM's scheduler, with a log of its iterations
    engines.core_process     the child process that EngineCore lives in
    engines.vllm_failure     what vLLM's failures mean
    engines.vllm_log         where vLLM speaks to
    engines.vllm_workers     worker processes behind queues, and vLLM's engines beside them
    engines.worker           one such process, seen from here
    engines.worker_process   what runs in it: a queue, vllm.LLM, another queue
    engines.queue_messages   what goes through the queues; types only
    approaches               the registry of ways to serve that are compared, one module each
    approaches.seam          what an approach is; types only
    approaches.one_worker    one request at a time behind queues
    approaches.two_workers   two of these on one device
    approaches.static_batching  batches that end with their slowest
    approaches.untuned       continuous batching with a cap that nobody measured
    approaches.tuned         with the one that was found
    approaches.full_profile  with every argument of a profile
    engines.sim              how simulated engines come into being
    engines.sim_engine       a running one
    engines.world            the file that describes the simulated machine
    engines.sim_workers      workers behind queues on that machine
    engines.weather          noise, drift, stalls and bad neighbours of that machine
    engines.virtual_time     an event loop on which time is free
    scheduler.model          vLLM's scheduler as a discrete-event model
    scheduler.coast          where it hurries: batches that stay as they are
    scheduler.queue          its waiting requests and KV blocks
    scheduler.state          its state, in arrays
    jit                      numeric loops, compiled
    models                   the tiny model that ships with the package
    devices                  the hardware, and how busy it is
    prometheus               what a server says at /metrics, by our names

From replay to verdict
    records                  what is sent, and what became of it
    readings                 what the device does meanwhile
    device_use               what those readings say
    replay                   the trace, sent again: open loop
    attempts                 a replay, made again while our own sending was late
    priority                 what keeps a sender punctual
    probe                    what an idle engine does
    climb                    iterations at every batch size, up and down
    iterations               what the log of an engine's iterations says
    punctuality              whether our own requests left in time
    measure                  records and iterations to what a replay cost
    uncertainty              how sure the numbers are
    twin.simulation          the scheduler model in the engine's place
    twin.law                 its step-time law, fitted
    twin.nnls                least squares with coefficients of 0 or more
    twin.choice              what it would choose, and how surely
    twin.check               the twin held against what was measured
    twin.forecast            what the twin says of every cap, and how surely
    agreement                whether the confirming engine is the one that was measured
    knee                     where the knee is, and why
    ladder                   what to measure next, and for how long
    reasons                  a verdict, and the sentence that says why
    journal                  everything measured, on disk the moment it exists
    evidence                 what a run has measured so far
    settings                 what the user asked of a sweep
    conclusion               what everything measured comes to, without an engine
    rig                      the engine under test: started, replayed on, climbed on
    sweep                    the run, from engine to verdict
    outcome                  what a sweep found
    sharing                  which cap several kinds of traffic may share, and its price
    together                 the run for several of them, on one engine
    compare.load_levels      how heavy the traffic of a comparison is, and its lengths
    compare.windows          which part of the trace each block replays
    compare.calibration      what the engine of reference would do with some traffic
    compare.ratios           how approaches compare, paired by block
    compare.comparison       what each of them does
    compare.notes            what was seen, in words
    compare.settings         what the user asked of a comparison
    compare.evidence         what a comparison has measured so far
    compare.blocks           what every block sends
    compare.run              the run: blocks, approaches in random order
    rescore                  a stored run judged anew
    refine.knobs             what a refinement may change, and why
    refine.space             the space that it searches, by default and as named
    refine.knob_text         the same as somebody names it
    refine.objective         what it makes better
    refine.luck_share        how much of the luck that the twin sees is real, by the pairs
    refine.pair_mean         the mean of pairs without their luck, and how sure it is
    refine.with_twin         what pairs and the twin together say of a gain
    refine.ratio             refined / knee with its interval
    refine.proof             when a gain over the knee is proven
    refine.bench             where trials are made, and what they measured
    refine.local_bench       on the engine that is up on this machine
    refine.luck              what of a replay is not the configuration's
    refine.usual             how fast the machine usually is, by this run and the profile's
    refine.screen            the twin's first look at a configuration
    refine.study             Optuna around the knee
    refine.optuna_study      the same as Optuna keeps it
    refine.storage           where a study is kept
    refine.patience          how long an answer of it is waited for
    refine.parameters        a space's knobs as Optuna's parameters
    refine.importance        what each knob is worth
    refine.judge             what trials gained over the knee
    refine.likely            what the search begins with
    refine.search            what to replay next, and what became of it
    refine.balance           which windows the pairs replay
    refine.planned           which windows a trial replays: what the budget has time for
    refine.paired            what was found against the knee, in turns
    refine.tried             its trials as the result tells them
    refine.outcome           what a refinement comes to: curve, profile
    refine.reasons           what it says of its choice
    refine.validation        the refined engine by itself
    refine.refinement        what a refinement is asked, and what it found
    refine.starters          what starts its engines, as values that can travel
    refine.run               the run, from climb to profile
    cluster.share            what an engine takes of a cluster
    cluster.kinds            what a node of it is
    cluster.session          a Ray cluster, and workers on it: the only importer of ray
    cluster.notes            what a worker has measured, on its way home
    cluster.worker           what runs on a node
    cluster.crew             the workers of a run: hired, replaced, waited for
    cluster.bench            trials on them
    cluster.site             which nodes a run uses
    cluster.sweep_worker     a whole sweep on a node, told step by step
    cluster.sweeps           one for each kind of node
    prices                   what GPUs cost, and tokens with that
    exporter                 tuner's own Prometheus metrics

What is rolled out
    provenance               what a number rests on
    admission                limits on what is let in, from what users wait for
    result                   what a sweep found, as sections of a profile
    profile_numbers          its numbers, and the twin's section
    profile_schema           the sections of a serving profile
    twin.store               the twin as a profile keeps it, and back
    gates                    whether what was promised was kept
    verify                   the replay that shows it
    fleet                    what it says of other loads, caps, replicas and routers
    profile                  the serving profile, sealed, written and read
    rollout                  what a profile means for one deployment
    live_server              what a running server says of itself
    served_models            which models it says it serves, and whether ours is one
    watch.promised           the parts of a profile that a watch holds it against
    watch.windows            what it counted between two scrapes, and over windows of them
    watch.scraper            its /metrics, read at steady times
    watch.today              requests like today's, out of what was counted
    watch.expected           what the twin says of a window, and how slow the server was
    watch.sequential         tests that may be looked at after every window
    watch.drift              today's traffic against the profile's
    watch.choice             whether today's traffic would choose another cap
    watch.verdict            whether what was promised is still so
    watch.watched            what one window showed, in numbers to print
    watch.reasons            why it says what it says
    watch.journal            every window, on disk the moment it is over
    watch.canary             whether a canary is worse than its baseline
    watch.pair               a window of both, each held against the twin by its own limits
    live.protocol            what is said over the control socket of a server
    live.control_client      who asks there: all ranks of a server, or none
    live.cap_schedule        which cap holds at which time of day
    engines.live_scheduler   vLLM's scheduler with limits that change while it serves
    live.thread              its control, on a thread that cannot harm the server
    live.control             what is asked there, done, and taken back
    live.limits              what limits a server can have
    live.record              what goes on record
    live.listener            its clients, who may be anybody
    live.socket_files        its socket and files, safe from other users
    live.folders             whether others could put something else where a path leads
    difference               in what two profiles differ, or a profile and what is deployed
    targets                  the registry of rollout targets, one module each
    targets.seam             what a rollout target is; types only
    targets.vllm_config      a `vllm serve --config` YAML
    targets.compose          a service of a Compose file
    targets.kubernetes       a container of a Kubernetes manifest
    targets.kustomize        a Kustomize patch
    targets.kserve           KServe's InferenceService and LLMInferenceService
    targets.helm_production_stack  values of the vLLM production stack's chart
    targets.helm_llm_d       values of llm-d's chart
    targets.systemd          a systemd unit, or a drop-in for one
    targets.env              a file of environment variables
    targets.detect           which of these a file is
    targets.container_target  what those with containers have in common
    targets.container_command  the command line of a container
    targets.containers       containers in YAML, and which one is meant
    targets.command_line     the words that vLLM is started with
    targets.flags            vLLM's flags among them
    targets.vllm_flags       what is known of these flags
    targets.vllm_values      when two values are the same to vLLM
    targets.images           which vLLM an image has
    targets.words            a command line split as the one who runs it splits it
    targets.dialects         how shells, Compose and systemd spell one
    targets.yaml_file        a YAML file, edited a few characters at a time
    targets.yaml_nodes       what stands where in it
    targets.yaml_scalar      a YAML scalar, character by character
    targets.view             a text within texts, and its place in the file
    targets.yaml_edit        edits that leave the rest of a YAML text as it was
    monitoring               the registry of files that watch a server, one module each
    monitoring.seam          what such a file is; types only
    monitoring.prometheus_rules  alert rules for Prometheus
    monitoring.prometheus_rule_crd  the same for its operator
    monitoring.grafana_dashboard  a dashboard for Grafana
    monitoring.panels        panels of one
    monitoring.alerts        each alert: a promise broken, and what to do then
    monitoring.lines         the profile's numbers as limits
    monitoring.promql        vLLM's metrics as PromQL
    monitoring.seal          whose file it is, and whether it was edited since
    backup                   writes that can be taken back

At the edges
    cli                      the entry and the one error boundary
    interruption             what signals do: the first in order, the second at once
    commands.root            the typer app: all commands
    commands.options         options that several of them share
    commands.run_folder      where a run is kept, and how it goes on
    commands.machine         whether it is the machine that a profile was measured on
    commands.console         where results are printed, and how times look
    commands.sweep           `tuner sweep`: its options
    commands.sweep_setup     what they mean
    commands.sweep_run       what it does
    commands.sweep_view      how it looks
    commands.sweep_kinds     what it does on a Ray cluster
    commands.sweep_kinds_setup  kinds of nodes there, and what serves on each
    commands.sweep_kinds_view  how they look beside each other
    commands.sweep_several   what it does with several traces
    commands.sweep_several_view  how that looks
    commands.refine          `tuner refine`: its options
    commands.refine_setup    what they mean
    commands.refine_run      what it does
    commands.refine_ray      what it asks of a Ray cluster
    commands.refine_view     how it looks
    commands.trace           `tuner trace`: its options
    commands.trace_run       what it does
    commands.trace_report    how `tuner trace show` looks
    commands.trace_plot      its bars over time
    commands.trace_view      how the others look
    commands.trace_schedule  a concurrency schedule, made a trace
    commands.capture         `tuner capture`: its options
    commands.capture_run     what it does
    commands.plan            `tuner plan`: its options
    commands.plan_run        what it does, and how it looks
    commands.verify          `tuner verify`: its options
    commands.verify_run      what it does, and how it looks
    commands.verify_junit    what it leaves for CI
    commands.compare         `tuner compare`: its options
    commands.compare_setup   what they mean
    commands.compare_place   where it runs: vLLM, or a simulated machine
    commands.compare_run     what it does
    commands.compare_view    how it looks
    commands.compare_plot    how it looks as a plot
    commands.apply           `tuner apply`: its options
    commands.apply_run       what it does
    commands.apply_options   its command line as one value
    commands.apply_plan      what it would write
    commands.apply_generated  what it would write of files that are tuner's own
    commands.apply_view      how it looks
    commands.apply_live      `tuner apply --live`: what it does
    commands.apply_live_plan  what it asks of a server, and whether it may
    commands.apply_live_view  how it looks
    commands.diff            `tuner diff`: its options
    commands.diff_run        what it does, and how it looks
    commands.watch           `tuner watch`: its options
    commands.watch_setup     what they mean
    commands.watch_session   the watch as it goes on
    commands.watch_run       what it does, and how it ends
    commands.watch_view      how it looks
    errors                   everything raised on purpose
    passwords                taken out of addresses before anything is shown
    guard                    what runs inside a server does not fail it
    files                    files written whole or not at all
    scratch                  folders for what is needed only while we run
    yaml_strict              YAML that somebody else wrote
    yaml_bounded             how much of it is read
"""
