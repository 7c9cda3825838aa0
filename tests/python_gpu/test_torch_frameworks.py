# SPDX-License-Identifier: Apache-2.0
"""Programs of frameworks, unchanged, with PyTorch's own allocator and with lade's: losses are equal, and memory is never more.

Run as a program, `test_torch_frameworks.py native|lade NAME` is one of the two: it prints losses and peaks as JSON.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile

STEPS, BATCH, LENGTH, WORDS = 20, 8, 128, 1000


def language_model(layers=4):
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": layers, "n_embd": 256, "n_head": 4, "vocab_size": WORDS, "n_positions": 256}
    return GPT2LMHeadModel(GPT2Config(**sizes, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))


def steps(torch, model, count=STEPS):
    """Yields the loss of each."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for _ in range(count):
        words = torch.randint(0, WORDS, (BATCH, LENGTH), device="cuda")
        loss = model(words, labels=words).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()


def group_of_one(torch, folder, backend="nccl"):
    torch.distributed.init_process_group(backend, init_method=f"file://{folder}/store", rank=0, world_size=1)


def transformers_trainer(torch, folder):
    from transformers import Trainer, TrainingArguments

    rows = [torch.randint(0, WORDS, (LENGTH,)) for _ in range(STEPS * BATCH)]
    arguments = TrainingArguments(folder, max_steps=STEPS, per_device_train_batch_size=BATCH, logging_steps=5, skip_memory_metrics=False,
                                  report_to=[], save_strategy="no", seed=0)
    trainer = Trainer(model=language_model(), args=arguments, train_dataset=[{"input_ids": row, "labels": row} for row in rows])
    metrics = trainer.train().metrics
    losses = [each["loss"] for each in trainer.state.log_history if "loss" in each]
    return losses + [metrics["train_mem_gpu_alloc_delta"], metrics["train_mem_gpu_peaked_delta"]]


def transformers_device_map(torch, folder):
    from transformers import GPT2LMHeadModel

    language_model().save_pretrained(folder)
    words = torch.arange(64, device="cuda").reshape(1, 64)
    return [GPT2LMHeadModel.from_pretrained(folder, device_map="auto")(words, labels=words).loss.item()]


def lightning_trainer(torch, folder):
    import lightning

    losses = []

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = language_model()

        def training_step(self, batch, index):
            loss = self.model(batch[0], labels=batch[0]).loss
            losses.append(loss.item())
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), 1e-3)

    rows = torch.utils.data.TensorDataset(torch.randint(0, WORDS, (STEPS * BATCH, LENGTH)))
    trainer = lightning.Trainer(max_steps=STEPS, accelerator="gpu", devices=1, logger=False, default_root_dir=folder, enable_progress_bar=False)
    trainer.fit(Module(), torch.utils.data.DataLoader(rows, BATCH, pin_memory=True))
    return losses


def fully_sharded(torch, folder):
    from torch.distributed.fsdp import fully_shard

    group_of_one(torch, folder)
    model = language_model().cuda()
    for block in model.transformer.h:
        fully_shard(block)
    fully_shard(model)
    losses = list(steps(torch, model))
    torch.distributed.destroy_process_group()
    return losses


def asynchronous_checkpoint(torch, folder):
    import torch.distributed.checkpoint as dcp

    group_of_one(torch, folder, "cpu:gloo,cuda:nccl")
    model = language_model(8).cuda()
    losses = list(steps(torch, model, 5))
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    saved = dcp.async_save({"model": model.state_dict()}, checkpoint_id=f"{folder}/saved")
    saved.result()
    losses += steps(torch, model, 5)
    found = {"model": {name: torch.zeros_like(value) for name, value in kept.items()}}
    dcp.load(found, checkpoint_id=f"{folder}/saved")
    torch.distributed.destroy_process_group()
    return losses + [all(torch.equal(found["model"][name], value) for name, value in kept.items())]


PROGRAMS = {
    transformers_trainer: ["transformers", "accelerate"],
    transformers_device_map: ["transformers", "accelerate"],
    lightning_trainer: ["transformers", "lightning"],
    fully_sharded: ["transformers"],
    asynchronous_checkpoint: ["transformers"],
}


def one(who, name):
    import torch

    if who == "lade":
        import lade.torch

        lade.torch.install_device()
        lade.torch.install_pinned()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        told = globals()[name](torch, folder)
    print(json.dumps({"told": told, "peaks": [torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()]}))


def told_by(who, name):
    result = subprocess.run([sys.executable, os.path.abspath(__file__), who, name], capture_output=True, text=True, timeout=140,
                            env={**os.environ, "HF_HUB_OFFLINE": "1"})
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


if __name__ == "__main__":
    one(*sys.argv[1:])
else:
    import pytest

    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU", allow_module_level=True)

    @pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
    def test_losses_are_equal_and_memory_is_no_more(program):
        missing = [each for each in PROGRAMS[program] if importlib.util.find_spec(each) is None]
        if missing:
            pytest.skip(f"no {', '.join(missing)}")
        native, lade = told_by("native", program.__name__), told_by("lade", program.__name__)
        print(native, lade)
        assert lade["told"] == native["told"]
        assert all(by_lade <= by_native for by_lade, by_native in zip(lade["peaks"], native["peaks"]))
