# SPDX-License-Identifier: Apache-2.0
"""Programs that try again with less when memory runs out: they know the words of PyTorch's error. Each test is a process."""

import subprocess
import sys
import textwrap

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)

HEAD = """
    import torch, lade, lade.torch
    lade.torch.install_device()
    total = torch.cuda.get_device_properties(0).total_memory
    GIB = 1 << 30
    most = total // GIB  # batches of so many GiB and more fail
"""


def program(text):
    result = subprocess.run([sys.executable, "-c", textwrap.dedent(HEAD) + textwrap.dedent(text)], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


def test_accelerate_finds_the_batch_size():
    pytest.importorskip("accelerate")
    tried, found, most = program("""
        from accelerate.utils import find_executable_batch_size
        tried = []

        @find_executable_batch_size(starting_batch_size=2 * most)
        def train(batch_size):
            tried.append(batch_size)
            torch.empty(batch_size * GIB, dtype=torch.uint8, device="cuda")
            return batch_size

        found = train()
        print(len(tried), found, most)
    """)
    assert int(tried) > 1 and int(most) / 2 < int(found) <= int(most)


def test_lightning_finds_the_batch_size():
    pytest.importorskip("pytorch_lightning")
    found, most = program("""
        import warnings
        warnings.simplefilter("ignore")
        import pytorch_lightning as pl
        from pytorch_lightning.tuner import Tuner

        class Model(pl.LightningModule):
            def __init__(self):
                super().__init__()
                self.batch_size = 1
                self.layer = torch.nn.Linear(1, 1)

            def train_dataloader(self):
                return torch.utils.data.DataLoader(torch.ones(1 << 12, 1), batch_size=self.batch_size)

            def training_step(self, batch, index):
                torch.empty(len(batch) * GIB, dtype=torch.uint8, device="cuda")
                return self.layer(batch).sum()

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), 1e-6)

        trainer = pl.Trainer(accelerator="gpu", devices=1, max_epochs=1, logger=False, enable_checkpointing=False,
                             enable_progress_bar=False, enable_model_summary=False)
        found = Tuner(trainer).scale_batch_size(Model(), mode="power", steps_per_trial=1, max_trials=12)
        print(found, most)
    """)[-2:]
    assert int(most) / 2 < 2 * int(found) and int(found) <= int(most)


def test_the_memory_fraction_and_pinned_memory_speak_alike():
    assert program("""
        for request in (lambda: torch.empty(2 * total, dtype=torch.uint8, device="cuda"),):
            try:
                request()
            except torch.OutOfMemoryError as error:
                print(str(error).startswith("CUDA out of memory."), len(error.args))
        torch.cuda.set_per_process_memory_fraction(0.01)
        try:
            torch.empty(total // 2, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError as error:
            print(str(error).startswith("CUDA out of memory."), len(error.args))
    """) == ["True", "1", "True", "1"]
