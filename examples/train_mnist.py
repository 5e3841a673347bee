"""Train on MNIST from Python, look at the class capsules, load the run again.

python examples/train_mnist.py              the `fast` recipe, about five minutes on two cores
python examples/train_mnist.py --tiny       a minute's trial on 1,280 images
"""

import logging
import sys
import tempfile
from pathlib import Path

from rich.console import Console

import shortcaps
from shortcaps.training import TrainConfig, train
from shortcaps.training.display import ConsoleDisplay

logging.basicConfig(level=logging.INFO, format="%(message)s")  # says what is fetched, and from where
tiny = "--tiny" in sys.argv
config = TrainConfig.of(data="mnist", routing="fuzzy", epochs=1 if tiny else None, max_images=1280 if tiny else None)

with tempfile.TemporaryDirectory() as folder:
    result = train(config, Path(folder) / "run", display=ConsoleDisplay(Console()))
    assert result is not None
    print(f"test accuracy: {result.test.accuracy:.2%}")

    model = shortcaps.load(result.run)
    assert isinstance(model, shortcaps.CapsuleNetwork)
    test = shortcaps.load_dataset("mnist", "test")
    capsules = model.capsules(test.view(test.images[:1]))
    answer = int(capsules.activation.argmax())
    print(
        f"the first test image is a {test.class_names[int(test.labels[0])]}, the network says {model.class_names[answer]}"
    )
    print("the pose of that class capsule:")
    print(capsules.pose[0, answer])
