"""What a refit costs, measured beside the alternatives in one run: python -m benchmarks.refit --help.

refit.py       the command: starts each part in a process of its own, collects, compares with the bars
tasks.py       one measurement to make
process.py     how a process (child.py) is started for it
kernels.py     part "kernels": the quantization alone, over all weight matrices of a model
engine.py      part "engine": weight syncs of real vLLM engines
graphs.py      part "graphs": a refit under captured CUDA graphs, compared with an engine without
ranks.py       part "ranks": the same sync over several GPUs
worker.py      what the last three run inside vLLM's workers
models.py      shapes, names and configs of the models; tensors.py their weights, as a trainer holds them
matrices.py    the weight matrices of part "kernels"; methods.py all that it times; arithmetic.py the competitors
layout.py      which rows of the engine each of the trainer's tensors ends in; check.py the oracle's bytes there
timing.py      samples, medians, spread, rotated order
report.py      rows.py's figures and bars.py's bars, as tables and as JSON; machine.py the hardware and the versions
train.py       how long a recipe's training steps take; train_run.py one training, train_files.py what it reads,
               fewer_devices.py the recipe cut to the devices there are, flops.py, train_report.py, train_reward.py
sync.py        where the time of a weight sync under verl goes; sync_run.py one training, sync_stages.py its
               stamps as stages, sync_measured.py what they say and lack, sync_report.py, sync_picture.py
stamping.py    time stamps of functions from outside; sync_stamps.py of which functions, stamps/ what starts processes
               with them, stamped.py what they left
qat.py         what fake quantization adds to a training step
visit.sh       what one visit to a machine with GPUs can show, part by part
results/       dated results
"""
