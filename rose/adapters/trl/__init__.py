"""Use of the rollout service in TRL's trainers, without NCCL or vLLM.

Pass `TrlRollouts` as `rollout_func=` to GRPOTrainer, or call its `attach` if the trainer has tools.
Pass `TrlWeightTransfer` as `weight_transfer=` to AsyncGRPOTrainer. Workers receive the weights from
`rose.publish(trl_weights(model))`.
"""

from rose.adapters.trl.rollouts import TrlRollouts
from rose.adapters.trl.transfer import TrlWeightTransfer
from rose.adapters.trl.weights import trl_weights

__all__ = ["TrlRollouts", "TrlWeightTransfer", "trl_weights"]
