"""What verl logs of a step, where all is well."""

import json


def logged(step: int, **changes: float) -> str:
    names = ("critic/rewards/mean", "rollout_corr/rollout_is_mean", "rollout_corr/rollout_is_max", "refit/verified")
    names += ("rollout_corr/rollout_is_eff_sample_size", "timing_s/step", "timing_s/update_weights")
    names += ("timing_s/gen", "timing_s/update_actor")
    data = dict.fromkeys(names, 0.25) | {"rollout_corr/k3_kl": 1e-4}
    return json.dumps({"step": step, "data": data | changes}) + "\n"
