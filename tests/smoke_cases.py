"""What a smoke test's parts see where all is well."""

import json

from ascend_quant.smoke import life

LIVED = {
    "before": {"digest": "1", "formats": {"29": 4, "2": 3}},
    "after": {"digest": "1", "formats": {"29": 4, "2": 3}},
    "same answers": True,
    "a NaN": f"RefitError: {life.NAN}: NaN",
    "served meanwhile": False,
    "a good refit": "",
    "served then": True,
    "sleep level 2": "refused",
}


def logged(step: int, **changes: float) -> str:
    names = ("critic/rewards/mean", "rollout_corr/rollout_is_mean", "rollout_corr/rollout_is_max", "refit/verified")
    names += ("rollout_corr/rollout_is_eff_sample_size", "timing_s/step", "timing_s/update_weights")
    names += ("timing_s/gen", "timing_s/update_actor")
    data = dict.fromkeys(names, 0.25) | {"rollout_corr/k3_kl": 1e-4}
    return json.dumps({"step": step, "data": data | changes}) + "\n"
