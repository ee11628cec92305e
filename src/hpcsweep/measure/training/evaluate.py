"""Loss and accuracy on validation data, as the network is at that moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from hpcsweep.measure.training.trainer import Result, Score

if TYPE_CHECKING:
    from hpcsweep.measure.data.loaders import Data
    from hpcsweep.measure.training.trainer import Trainer


def evaluate(trainer: Trainer, data: Data) -> Result:
    """Run all validation images through the network in evaluation mode; leave it training.

    The loss is plain cross-entropy, without label smoothing, so that it compares across points.
    """
    score = Score.zero(trainer.device)
    trainer.model.eval()
    try:
        with torch.no_grad():
            for batch in data.val:
                images, labels = trainer.to_device(batch)
                with trainer.autocast():
                    # never the compiled form, which would compile once more for evaluation
                    loss, logits = trainer.loss(trainer.model(images), labels, smooth=False)
                score.add(loss, logits, labels)
    finally:
        trainer.model.train()
    return score.result()
