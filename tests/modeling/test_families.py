"""The contract of every family, on tiny random encoders of every kind."""

import copy
import itertools
import json
import pickle
import time

import pytest
import torch
import warm_process
from huggingface_hub.errors import StrictDataclassError
from plain_adaptive_clusters import plain_clusters_loss
from plain_candidates import make_tree, plain_candidate_loss
from tiny_encoders import ENCODER_CONFIGS, WORDS
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, pipeline

from glocal_xml.data.words import train_word_tokenizer
from glocal_xml.modeling import FAMILIES, APLCXLNetConfig, GlocalXMLConfig, LightAttentionConfig, MEXMLConfig
from glocal_xml.training.optimizer import RowwiseAdamW

NUM_LABELS = 23
# In no order, so that labels are not by chance where their frequency puts them.
LABEL_COUNTS = 7 * torch.arange(NUM_LABELS) % NUM_LABELS + 1
# What a family is tried with: its defaults at a small size, and each of its modes.
PAPER = {"attention_scoring": "mlp", "label_bias": False}
CASES = {
    "glocal_xml": (GlocalXMLConfig, {}),
    "glocal_xml-paper": (GlocalXMLConfig, {"mlp_size": 8, **PAPER}),
    "glocal_xml-pooler": (GlocalXMLConfig, {"mlp_size": 24, "attention_scoring": "mlp", "use_pooler": True}),
    "glocal_xml-global": (GlocalXMLConfig, {"branches": "global", "label_bias": False}),
    # Alone and without a bias of its own per label, attention at this size gets stuck before it fits every label.
    "glocal_xml-local": (
        GlocalXMLConfig,
        {"mlp_size": 48, "branches": "local", "local_layer": 0, "temperature": 0.5, "attention_scoring": "mlp"},
    ),
    "glocal_xml-evidence": (
        GlocalXMLConfig,
        {"branches": "local", "local_layer": 2, "key_size": 24, "value_size": 24, "tied_outputs": True},
    ),
    "me_xml": (MEXMLConfig, {"mlp_size": 8, "diversity_weight": 0.3, "diversity_start_epoch": 0}),
    "me_xml-three-experts": (
        MEXMLConfig,
        {
            "experts": ["A-0", "A-2", "D-3+1"],
            "attention_scoring": "evidence",
            "document_mlp_size": 12,
            "diversity_weight": 0.3,
            "diversity_start_epoch": 0,
        },
    ),
    "me_xml-collaborative": (
        MEXMLConfig,
        {"mlp_size": 8, "training_loss": "collaborative", "diversity_weight": 0},
    ),
    # With a label tree: beams that find every label in prediction, so that it equals scoring all of them, and few
    # clusters in training.
    "glocal_xml-clusters": (
        GlocalXMLConfig,
        {"mlp_size": 8, "tree_levels": [7], "beam": 7, "training_beam": 2, **PAPER},
    ),
    "glocal_xml-tree": (
        GlocalXMLConfig,
        {
            "value_size": 12,
            "tree_levels": [3, 8],
            "beam": 8,
            "training_beam": 2,
            "use_pooler": True,
            "label_size": 24,
            "document_layers": 2,
        },
    ),
    "me_xml-clusters": (
        MEXMLConfig,
        {
            "mlp_size": 8,
            "tree_levels": [7],
            "beam": 7,
            "training_beam": 2,
            "diversity_weight": 0.3,
            "diversity_start_epoch": 0,
        },
    ),
    "me_xml-clusters-collaborative": (
        MEXMLConfig,
        {
            "mlp_size": 8,
            "tree_levels": [7],
            "beam": 7,
            "training_beam": 2,
            "training_loss": "collaborative",
            "diversity_weight": 0,
        },
    ),
    # Contracts compare runs in training mode: no dropout. In trials, tails as narrow as these encoders got stuck
    # before they fitted every label.
    "aplc_xlnet": (APLCXLNetConfig, {"summary_size": 48, "summary_dropout": 0.0}),
    "aplc_xlnet-tails": (
        APLCXLNetConfig,
        {
            "cluster_proportions": [0.2, 0.3, 0.5],
            "cluster_decay": 1.5,
            "summary_size": 48,
            "summary_dropout": 0.0,
        },
    ),
    "light_attention": (LightAttentionConfig, {"mlp_sizes": [48, 24]}),
    "light_attention-evidence": (LightAttentionConfig, {"attention_scoring": "evidence", "value_size": 24}),
    "light_attention-tree": (
        LightAttentionConfig,
        {"attention_scoring": "evidence", "tree_levels": [3, 8], "beam": 8, "training_beam": 2},
    ),
    "light_attention-static": (
        LightAttentionConfig,
        {
            "mlp_sizes": [48],
            "tree_levels": [7],
            "beam": 7,
            "training_beam": 2,
            "level_epochs": 1,
            "negatives": "static",
        },
    ),
}
# The defaults of every family are tried on all encoders, each of their modes on the two that differ most: XLNet has
# its document token last. The word encoder is that of LightAttention.
MODE_ENCODERS = ("bert", "xlnet")


def is_tried(case, encoder):
    if encoder == "word_lstm":
        return case[0] is LightAttentionConfig
    return encoder in MODE_ENCODERS or case in [CASES[config.model_type] for config in FAMILIES]


def binary_cross_entropy(logits, target):
    return torch.nn.functional.binary_cross_entropy_with_logits(logits, target)


def sum_of_losses(model, scores, branches, target):
    """GlocalXML eq. 8."""
    return sum(binary_cross_entropy(logits, target) for logits in branches.values())


def mean_loss_and_diversity(model, scores, branches, target):
    """ME-XML eq. 5-10, written out over all labels."""
    # In double precision, since the logarithms of probabilities near 0 and 1 would be infinite.
    experts, target = [logits.double() for logits in branches.values()], target.double()
    if model.config.training_loss == "collaborative":
        return binary_cross_entropy(sum(experts) / len(experts), target)
    diversity = 0.0
    pairs = list(itertools.combinations([logits.sigmoid() for logits in experts], 2))
    for p, q in pairs:
        divergence = p * torch.log(p / q) + (1 - p) * torch.log((1 - p) / (1 - q))
        diversity -= (target * (1 - torch.maximum(p, q)) / LABEL_COUNTS * divergence).sum(dim=1).mean() / len(pairs)
    individual = sum(binary_cross_entropy(logits, target) for logits in experts) / len(experts)
    return individual + model.config.diversity_weight * diversity


def clusters_loss(model, scores, branches, target):
    """APLC-XLNet eq. 5, which also needs the roots of the clusters."""
    labels = [row.nonzero().flatten() for row in target]
    return plain_clusters_loss(model.head, scores.branches["clusters"].hidden, labels, LABEL_COUNTS.tolist())


def candidates_loss(model, scores, branches, target):
    """The losses of candidate labels and of the nodes above them; branches without the way down the tree."""
    labels = [row.nonzero().flatten().tolist() for row in target]
    own = {name: branch.all().to(target.dtype) for name, branch in scores.own.items()}

    def of_labels(text, candidates, is_label):
        rows = {name: logits[text, candidates] for name, logits in own.items()}
        if model.config.model_type != "me_xml":
            return sum(binary_cross_entropy(row, is_label) for row in rows.values())
        one_hot = torch.zeros_like(target[text]).double()
        one_hot[candidates] = is_label.double()
        if model.config.training_loss == "collaborative":
            return binary_cross_entropy(sum(rows.values()) / len(rows), is_label)
        individual = sum(binary_cross_entropy(row, is_label) for row in rows.values()) / len(rows)
        experts = {name: logits[text : text + 1] for name, logits in own.items()}
        whole = mean_loss_and_diversity(model, scores, experts, one_hot[None])
        without = sum(binary_cross_entropy(row.double(), one_hot[None]) for row in experts.values()) / len(experts)
        return individual + whole - without

    return plain_candidate_loss(model, scores, labels, of_labels)


# The loss of a family from the logits of its branches over all labels, as its paper writes it.
PLAIN_LOSSES = {
    "glocal_xml": sum_of_losses,
    "me_xml": mean_loss_and_diversity,
    "aplc_xlnet": clusters_loss,
    "light_attention": sum_of_losses,
}


def plain_loss_of(model):
    return candidates_loss if getattr(model, "label_tree", None) else PLAIN_LOSSES[model.config.model_type]


def tell_about_labels(model):
    """What a new model has to know of its labels."""
    num_labels = model.config.num_labels
    model.set_label_counts(LABEL_COUNTS if num_labels == NUM_LABELS else torch.arange(num_labels, 0, -1))
    if getattr(model, "label_tree", None):
        model.set_label_tree(*make_tree(num_labels, model.config.tree_levels))


def pytest_generate_tests(metafunc):
    """Each mode of a family on the encoders that it is tried on."""
    if "encoder_config" in metafunc.fixturenames:
        pairs = [(case, name) for case in sorted(CASES) for name in ENCODER_CONFIGS if is_tried(CASES[case], name)]
        metafunc.parametrize(("case", "encoder_config"), pairs, indirect=True)
    elif "case" in metafunc.fixturenames:
        metafunc.parametrize("case", sorted(CASES), indirect=True)


@pytest.fixture
def case(request):
    return CASES[request.param]


@pytest.fixture
def encoder_config(request):
    """The configuration of a tiny encoder."""
    return ENCODER_CONFIGS[request.param]()


@pytest.fixture
def make_model(case):
    config_class, fields = case

    def make(encoder_config, fresh_heads=False, **overrides):
        torch.manual_seed(0)
        config = config_class(
            encoder=encoder_config.to_dict(), **{"num_labels": NUM_LABELS, "top_k": 5, **fields, **overrides}
        )
        model = FAMILIES[config_class](config)
        tell_about_labels(model)
        # Where levels are trained one after the other: the last of them.
        if not fresh_heads:
            model.start_epoch(99)
        # Fresh heads score so close to zero that wrong code could pass by comparing almost nothing.
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if not (fresh_heads or name.startswith("encoder.")):
                    parameter.normal_(std=0.5)
        return model

    return make


@pytest.fixture
def model(make_model, encoder_config):
    return make_model(encoder_config).eval()


def make_batch(model, texts=8, tokens=9):
    """Texts of different lengths, padded on the right; one has no label, one a repeated label."""
    generator = torch.Generator().manual_seed(1)
    pad = model.config.encoder.pad_token_id or 0
    input_ids = torch.randint(6, 60, (texts, tokens), generator=generator)
    lengths = torch.randint(2, tokens + 1, (texts,), generator=generator)
    attention_mask = (torch.arange(tokens) < lengths[:, None]).long()
    labels = torch.randint(0, NUM_LABELS, (texts, 3), generator=generator)
    labels[0] = -100
    labels[1] = torch.tensor([4, 4, -100])
    return {
        "input_ids": input_ids.masked_fill(attention_mask == 0, pad),
        "attention_mask": attention_mask,
        "labels": labels,
    }


def multi_hot(labels):
    dense = torch.zeros(len(labels), NUM_LABELS)
    for row, ids in zip(dense, labels, strict=True):
        row[ids[ids >= 0]] = 1
    return dense


def test_forward(model):
    batch = make_batch(model)
    with torch.no_grad():
        output = model(**batch)
        scores = model(batch["input_ids"], batch["attention_mask"], output_scores=True).scores
        branches = {name: branch.all() for name, branch in scores.branches.items()}
    assert output.logits.shape == (8, NUM_LABELS)
    # The final probability is the mean of the branches'.
    probability = torch.stack([logits.sigmoid() for logits in branches.values()]).mean(dim=0)
    torch.testing.assert_close(output.logits.sigmoid(), probability)
    target = multi_hot(batch["labels"])
    expected = plain_loss_of(model)(model, scores, branches, target)
    torch.testing.assert_close(output.loss, expected.to(output.loss.dtype))
    torch.testing.assert_close(sum(output.loss_terms.values()), output.loss)
    # As in tuples of Transformers.
    assert torch.equal(output.to_tuple()[0], output.loss) and torch.equal(output.to_tuple()[1], output.logits)
    best, ids = output.logits.sort(dim=1, descending=True, stable=True)
    assert torch.equal(output.top_k_ids, ids[:, :5])
    torch.testing.assert_close(output.top_k_scores, best[:, :5].sigmoid())


def test_training_loss_equals_evaluation_loss(model):
    batch = make_batch(model)
    expected = model(**batch).loss
    output = model.train()(**batch)
    assert output.logits is None and output.top_k_ids is None
    torch.testing.assert_close(output.loss, expected)


def test_prediction_and_chosen_labels_agree_with_forward(model):
    batch = make_batch(model)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        output = model(**inputs)
    # A frozen encoder without dropout stays so.
    model.train().encoder.eval()
    best = model.predict_top_k(**inputs, top_k=3)
    assert model.training and next(iter(model.branch_heads().values())).training and not model.encoder.training
    assert torch.equal(best.top_k_ids, output.top_k_ids[:, :3])
    assert best.logits is None
    chosen = model.score_labels(output.top_k_ids, **inputs)
    torch.testing.assert_close(chosen["final"], output.top_k_scores)
    same_for_all = model.score_labels(torch.tensor([7, 2]), **inputs)
    torch.testing.assert_close(same_for_all["final"], output.logits.sigmoid()[:, [7, 2]])


def test_best_of_chosen_labels_is_the_full_ranking_filtered(model):
    batch = make_batch(model)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        logits = model(**inputs, output_logits=True).logits
        scores = model(**inputs, output_scores=True).scores
        branches = [branch.all() for branch in scores.branches.values()]
    # Chunks of a few labels.
    for head in model.branch_heads().values():
        head.chunk_bytes = 2000
    for number in (1, 9, NUM_LABELS):
        candidates = torch.randperm(NUM_LABELS)[:number]
        left_out = torch.ones(NUM_LABELS, dtype=torch.bool)
        left_out[candidates] = False

        def ranking(scores, left_out=left_out, number=number):
            scores, ids = scores.masked_fill(left_out, -torch.inf).sort(dim=1, descending=True, stable=True)
            return scores[:, : min(5, number)], ids[:, : min(5, number)]

        # Told of some labels twice.
        best = model.predict_top_k(**inputs, top_k=5, candidate_ids=torch.cat([candidates, candidates[:3]]))
        scores, ids = ranking(logits)
        assert torch.equal(best.top_k_ids, ids)
        torch.testing.assert_close(best.top_k_scores, scores.sigmoid())
        assert (best.branch_top_k_ids is None) == (len(branches) == 1)
        for i, values in enumerate(branches if len(branches) > 1 else ()):
            assert torch.equal(best.branch_top_k_ids[:, i], ranking(values)[1])


@pytest.mark.parametrize("ids", [[NUM_LABELS], [-1], [], [0.5], [[1, 2]]])
def test_bad_candidates_are_refused(make_model, ids):
    with pytest.raises(ValueError, match="candidate_ids"):
        make_model(ENCODER_CONFIGS["bert"]()).predict_top_k(torch.tensor([[7, 8]]), candidate_ids=ids)


def test_label_word_attention(model):
    if not any(hasattr(head, "key") for head in model.branch_heads().values()):
        with pytest.raises(ValueError, match="no label-word attention"):
            model.label_word_attention(torch.tensor([1]), torch.tensor([[7]]))
        return
    batch = make_batch(model)
    weights = model.label_word_attention(torch.tensor([3, 1]), batch["input_ids"], batch["attention_mask"])
    assert weights.shape == (8, 2, 9)
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(8, 2))
    assert (weights.masked_select(batch["attention_mask"][:, None] == 0) == 0).all()
    flipped = {name: batch[name].flip(1) for name in ("input_ids", "attention_mask")}
    # Left padding: the texts keep their order, so only the place of the weights changes.
    lengths = batch["attention_mask"].sum(dim=1)
    left = {name: torch.zeros_like(value) for name, value in flipped.items()}
    for row, length in enumerate(lengths):
        for name in left:
            left[name][row, 9 - length :] = batch[name][row, :length]
    moved = model.label_word_attention(torch.tensor([3, 1]), **left)
    for row, length in enumerate(lengths):
        torch.testing.assert_close(moved[row, :, 9 - length :], weights[row, :, :length])


def test_copies_and_pickles(make_model):
    model = make_model(ENCODER_CONFIGS["bert"]()).eval()
    inputs = {"input_ids": torch.tensor([[7, 8, 9]])}
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(other(**inputs).logits, model(**inputs).logits)


def test_save_and_load(model, tmp_path):
    batch = make_batch(model)
    names = [f"label {i}\u2028é" for i in range(NUM_LABELS)]
    model.set_label_names(names)
    model.save_pretrained(tmp_path)
    expected = model(**batch)
    for auto_class in (AutoModel, AutoModelForSequenceClassification):
        loaded = auto_class.from_pretrained(tmp_path)
        assert type(loaded) is type(model)
        assert loaded.label_names == names
        # Loaded weights lie elsewhere in memory, and products round by how their operands are aligned.
        torch.testing.assert_close(loaded(**batch).logits, expected.logits, rtol=1e-4, atol=1e-5)
        state = loaded.state_dict()
        assert state.keys() == model.state_dict().keys()
        assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    assert isinstance(AutoConfig.from_pretrained(tmp_path), type(model.config))


REMOTE = """
import json
import sys

# The package is not there.
sys.modules["glocal_xml"] = None

import torch
from transformers import AutoModel, AutoModelForSequenceClassification, pipeline

folder, batch = json.loads(sys.stdin.read())
batch = {name: torch.tensor(value) for name, value in batch.items()}
for auto_class in (AutoModel, AutoModelForSequenceClassification):
    model = auto_class.from_pretrained(folder, trust_remote_code=True)
    output = model(**batch)
# Code that came with a checkpoint is saved with it again.
model.save_pretrained(folder + "-again")
again = AutoModel.from_pretrained(folder + "-again", trust_remote_code=True)
assert torch.equal(again(**batch).logits, output.logits)
# So is that of the pipeline, which is found with and without its name.
pipe = pipeline("extreme-multi-label-classification", model=folder, trust_remote_code=True)
pipe.save_pretrained(folder + "-pipeline")
pipe = pipeline(model=folder + "-pipeline", trust_remote_code=True)
labels = pipe(["apple moon", "kite"], top_k=3, branch_scores=True)
print(json.dumps([output.logits.tolist(), again.label_names, labels]))
"""


@pytest.mark.parametrize(
    "family",
    ["aplc_xlnet", "glocal_xml", "glocal_xml-tree", "light_attention", "light_attention-static", "me_xml-clusters"]
    + ["me_xml"],
)
def test_loads_as_remote_code_without_the_package(family, tmp_path):
    config_class, fields = CASES[family]
    # The code of LightAttention's own encoder comes with the checkpoint too.
    encoder = ENCODER_CONFIGS["word_lstm" if family.startswith("light_attention") else "bert"]()
    model = FAMILIES[config_class](config_class(encoder=encoder, num_labels=NUM_LABELS, **fields))
    tell_about_labels(model)
    model.eval().set_label_names([f"name {i}" for i in range(NUM_LABELS)])
    model.save_pretrained(tmp_path / "model")
    train_word_tokenizer([" ".join(WORDS)], min_texts=1).save_pretrained(tmp_path / "model")
    batch = make_batch(model)
    payload = json.dumps([str(tmp_path / "model"), {name: value.tolist() for name, value in batch.items()}])
    process = warm_process.run(REMOTE, input=payload, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    logits, names, labels = json.loads(process.stdout.splitlines()[-1])
    torch.testing.assert_close(torch.tensor(logits), model(**batch).logits)
    assert names == model.label_names
    pipe = pipeline("extreme-multi-label-classification", model=str(tmp_path / "model"))
    for rows, expected in zip(labels, pipe(["apple moon", "kite"], top_k=3), strict=True):
        assert [row["label"] for row in rows] == [row["label"] for row in expected]
        assert list(rows[0]["branch_scores"]) == model.branch_names


def dense(gradient):
    return gradient.to_dense() if gradient.is_sparse else gradient.clone()


def gradients(model, batches):
    """Mean loss over batches and its gradients, in training mode and double precision."""
    model = model.double().train()
    model.zero_grad()
    total = 0.0
    for batch in batches:
        loss = model(**batch).loss / len(batches)
        loss.backward()
        total += loss.item()
    return total, {name: dense(p.grad) for name, p in model.named_parameters() if p.grad is not None}


def assert_same_gradients(first, second):
    assert first[0] == pytest.approx(second[0], rel=1e-9)
    assert first[1].keys() == second[1].keys()
    for name, gradient in first[1].items():
        torch.testing.assert_close(second[1][name], gradient, rtol=1e-6, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}")


def test_batch_equals_accumulated_texts(model):
    batch = make_batch(model)
    texts = [{name: value[i : i + 1] for name, value in batch.items()} for i in range(8)]
    assert_same_gradients(gradients(model, [batch]), gradients(model, texts))


def test_padding_changes_nothing(model):
    batch = make_batch(model)
    pad = model.config.encoder.pad_token_id or 0
    extra = {"input_ids": torch.full((8, 3), pad), "attention_mask": torch.zeros(8, 3, dtype=torch.long)}
    longer = {**batch, **{name: torch.cat([batch[name], extra[name]], dim=1) for name in extra}}
    left = {**batch, **{name: torch.zeros_like(longer[name]) for name in extra}}
    for row, length in enumerate(batch["attention_mask"].sum(dim=1)):
        left["input_ids"][row, : 12 - length] = pad
        for name in extra:
            left[name][row, 12 - length :] = batch[name][row, :length]
    expected = gradients(model, [batch])
    assert_same_gradients(expected, gradients(model, [longer]))
    assert_same_gradients(expected, gradients(model, [left]))
    torch.testing.assert_close(model.eval()(**left).logits, model(**batch).logits)


@pytest.mark.parametrize("chunk_bytes", [1, 1000])
def test_chunk_size_changes_nothing(make_model, encoder_config, chunk_bytes):
    whole = make_model(encoder_config).eval()
    batch = make_batch(whole)
    chunked = make_model(encoder_config, label_chunk_bytes=chunk_bytes).eval()
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    assert chunked(**inputs, output_scores=True).scores.run_size < NUM_LABELS
    torch.testing.assert_close(chunked(**batch).logits, whole(**batch).logits)
    assert torch.equal(chunked(**batch).top_k_ids, whole(**batch).top_k_ids)
    assert_same_gradients(gradients(whole, [batch]), gradients(chunked, [batch]))


def share_of_labels_found(model, batch):
    wanted = [set(row[row >= 0].tolist()) for row in batch["labels"]]
    best = model.eval().predict_top_k(batch["input_ids"], batch["attention_mask"]).top_k_ids.tolist()
    found = [set(row[: len(labels)]) for row, labels in zip(best, wanted, strict=True)]
    return sum(len(a & b) for a, b in zip(wanted, found, strict=True)) / sum(map(len, wanted))


def test_overfits_eight_texts(make_model):
    """On one encoder, since it takes long; models as small as these fit at one of two rates, or at both."""
    shares = []
    # The one at which they need fewer steps comes first.
    for rate in (1e-2, 3e-3):
        model = make_model(ENCODER_CONFIGS["bert"](), fresh_heads=True, top_k=3)
        batch = make_batch(model)
        batch["labels"][0, 0] = 2
        optimizer = RowwiseAdamW(model.parameters(), lr=rate, weight_decay=0.0)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=400)
        for step in range(400):
            optimizer.zero_grad()
            model.start_epoch(step // 100)
            model.train()(**batch).loss.backward()
            optimizer.step()
            schedule.step()
            if step % 20 == 19 and share_of_labels_found(model, batch) == 1.0:
                return
        shares.append(share_of_labels_found(model, batch))
    pytest.fail(f"after 400 steps only {shares} of the labels are found")


def test_huge_heads_are_finite_under_autocast(make_model):
    """Keys, values and logits overflow in float16 then."""
    model = make_model(ENCODER_CONFIGS["bert"]())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not name.startswith(("encoder.", "level_encoders.")):
                parameter.mul_(3000)
    batch = make_batch(model)
    with torch.autocast("cpu", dtype=torch.float16):
        assert model.train()(**batch).loss.isfinite()
        output = model.eval()(**batch)
    assert output.loss.isfinite() and output.logits.isfinite().all() and output.top_k_scores.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_finite_under_autocast(model, dtype):
    batch = make_batch(model)
    with torch.no_grad():
        expected = model(**batch)
    with torch.autocast("cpu", dtype=dtype):
        output = model(**batch)
        model.zero_grad()
        loss = model.train()(**batch).loss
    loss.backward()
    assert loss.dtype == torch.float32
    assert output.loss.dtype == torch.float32 and output.logits.dtype == torch.float32
    torch.testing.assert_close(output.loss, expected.loss, rtol=0.1, atol=0.05)
    for name, parameter in model.named_parameters():
        assert parameter.grad is None or dense(parameter.grad).isfinite().all(), name


def test_gradient_checkpointing(model):
    batch = make_batch(model)
    expected = gradients(model, [batch])
    if model.config.encoder.model_type in ("xlnet", "word_lstm"):
        with pytest.raises(ValueError):
            model.gradient_checkpointing_enable()
        return
    model.gradient_checkpointing_enable()
    assert_same_gradients(expected, gradients(model, [batch]))


@pytest.mark.parametrize("family", sorted(CASES))
def test_half_a_million_labels(family, tmp_path):
    config_class, fields = CASES[family]
    config = config_class(
        encoder=ENCODER_CONFIGS["bert"](), **{**fields, "num_labels": 500_000, "label_chunk_bytes": 2**20}
    )
    if fields.get("tree_levels"):
        config.tree_levels, config.beam = [*fields["tree_levels"][:-1], 5_000], 2
    model = FAMILIES[config_class](config).eval()
    tell_about_labels(model)
    # Names are a matter of the base class, and take most of the time: once for each family.
    has_names = family == config.model_type
    if has_names:
        model.set_label_names([f"a label of quite ordinary length, number {i}" for i in range(500_000)])
    model.save_pretrained(tmp_path)
    assert (tmp_path / "config.json").stat().st_size < 5_000
    started = time.perf_counter()
    AutoConfig.from_pretrained(tmp_path)
    assert time.perf_counter() - started < 2.0
    loaded = AutoModel.from_pretrained(tmp_path)
    if has_names:
        assert loaded.label_names[-1].endswith("number 499999")
    inputs = {"input_ids": torch.tensor([[7, 8, 9], [9, 8, 7]]), "labels": torch.tensor([[499_999], [0]])}
    output = loaded(**inputs)
    assert output.logits is None, "beyond `max_logits_labels` only on request"
    assert output.top_k_ids.shape == (2, 10)
    # No tensor of the size of the label space may be kept for the backward pass but the parameters' gradients.
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        loss = loaded.train()(**inputs).loss
    parameters = {parameter.data_ptr() for parameter in loaded.parameters()}
    kept = sum(t.numel() * t.element_size() for t in saved if t.untyped_storage().data_ptr() not in parameters)
    assert kept < 4 * 2**20, kept
    loss.backward()
    assert loss.isfinite()


BAD_INPUTS = {
    "label out of range": ({"labels": torch.tensor([[NUM_LABELS]])}, "has 23 labels"),
    "negative label": ({"labels": torch.tensor([[-1]])}, "padding is -100"),
    "multi-hot labels": ({"labels": torch.zeros(1, NUM_LABELS)}, "multi-hot"),
    "multi-hot labels as integers": ({"labels": torch.eye(NUM_LABELS, dtype=torch.long)[:1]}, "multi-hot"),
    "labels as a list": ({"labels": [[1]]}, "tensor"),
    "mask as a list": ({"attention_mask": [[1, 1, 1]]}, "tensor"),
    "labels of another batch": ({"labels": torch.tensor([[1], [2]])}, "shape"),
    "empty batch": ({"input_ids": torch.zeros(0, 3, dtype=torch.long)}, "at least 1"),
    "no tokens": ({"input_ids": torch.zeros(1, 0, dtype=torch.long)}, "at least 1"),
    "token ids as floats": ({"input_ids": torch.ones(1, 3)}, "integers"),
    "mask of another shape": ({"attention_mask": torch.ones(1, 2)}, "of the shape"),
    "nothing attended": ({"attention_mask": torch.zeros(1, 3)}, "no attended token"),
    "too many tokens": ({"input_ids": torch.ones(1, 65, dtype=torch.long)}, "positions for 64"),
    "top_k of zero": ({"top_k": 0}, "at least 1"),
}


@pytest.mark.parametrize("bad", sorted(BAD_INPUTS))
def test_bad_input_is_refused_with_a_remedy(make_model, bad):
    model = make_model(ENCODER_CONFIGS["bert"]()).eval()
    inputs, message = BAD_INPUTS[bad]
    with pytest.raises(ValueError, match=message):
        model(**{"input_ids": torch.tensor([[7, 8, 9]]), **inputs})


@pytest.mark.parametrize("ids", [torch.tensor([NUM_LABELS]), torch.tensor([-1]), torch.tensor([0.5]), torch.tensor(3)])
def test_bad_chosen_labels_are_refused(make_model, ids):
    with pytest.raises(ValueError, match="label_ids"):
        make_model(ENCODER_CONFIGS["bert"]()).score_labels(ids, torch.tensor([[7, 8]]))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_labels": 0}, "num_labels"),
        ({"num_labels": "many"}, "num_labels"),
        ({"top_k": 0}, "top_k"),
        ({"label_chunk_bytes": 0}, "label_chunk_bytes"),
        ({"max_logits_labels": -1}, "max_logits_labels"),
    ],
)
def test_bad_configuration_is_refused(case, fields, message):
    config_class, defaults = case
    with pytest.raises(StrictDataclassError, match=message):
        config_class(**{"num_labels": NUM_LABELS, **defaults, **fields})
