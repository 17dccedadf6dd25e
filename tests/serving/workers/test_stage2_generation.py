"""Grammar, stop and spelling of one generation."""

from __future__ import annotations

import json
import threading
from typing import Any

import jsonschema
import pytest
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from pipeline_ver2.errors import EngineFailed, RequestError
from serving.workers.stage2_generation import Feed, Grammars, Guide, Recorder, Speller, Step, Stopper
from tests.chats import SCHEMA
from tests.tiny_answerer import write_answerer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    """The tokenizer of the untrained model: single bytes, `walk`, and chat markers."""
    load: Any = AutoTokenizer.from_pretrained
    loaded: PreTrainedTokenizerBase = load(write_answerer(tmp_path_factory.mktemp("answerer")))
    return loaded


@pytest.fixture
def grammars(tokenizer: PreTrainedTokenizerBase) -> Grammars:
    """Compiled grammars for it; the model has more logits than the tokenizer has tokens."""
    return Grammars(tokenizer, vocab_size=272, eos_ids=[tokenizer.eos_token_id])


def steer(grammars: Grammars, schema: dict[str, Any], wishes: torch.Tensor, length: int = 400) -> list[int]:
    """Greedy decoding of constant wishes under a schema, up to the end."""
    guide = Guide(grammars.matcher(schema), prompt_length=2)
    ids = [0, 0]
    for _ in range(length):
        scores = guide(torch.tensor([ids]), wishes[None].clone())
        ids.append(int(scores.argmax()))
        if ids[-1] in grammars.tokenizer.eos_tokens:
            return ids[2:-1]
    pytest.fail("the grammar never let the answer end")


@pytest.mark.fault("B1")
def test_a_model_that_wishes_for_blanks_only_still_answers(
    grammars: Grammars, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Whitespace between the parts is not to be had: the answer is compact and ends."""
    wishes = torch.zeros(272)
    for blank in (" ", "\n", "\t"):
        wishes[tokenizer(blank)["input_ids"]] = 9
    text = grammars.tokenizer.decode_str(steer(grammars, SCHEMA, wishes))
    jsonschema.validate(json.loads(text), SCHEMA)
    assert text.startswith('{"action":"')
    assert json.loads(text)["description"].strip() == ""


def test_every_sample_of_the_grammar_is_valid(grammars: Grammars) -> None:
    """With wishes at random, thirty times over."""
    generator = torch.Generator().manual_seed(0)
    actions = set()
    for _ in range(30):
        text = grammars.tokenizer.decode_str(steer(grammars, SCHEMA, torch.rand(272, generator=generator)))
        jsonschema.validate(json.loads(text), SCHEMA)
        actions.add(json.loads(text)["action"])
    assert len(actions) > 1


def test_logits_beyond_the_tokenizer_are_masked(grammars: Grammars) -> None:
    """A padded vocabulary cannot leak a token that means nothing."""
    guide = Guide(grammars.matcher(SCHEMA), prompt_length=0)
    scores = guide(torch.zeros((1, 0), dtype=torch.long), torch.zeros((1, 300)))
    assert torch.isinf(scores[0, 272:]).all()
    assert torch.isfinite(scores).any()


def test_matchers_of_one_schema_are_independent(grammars: Grammars, tokenizer: PreTrainedTokenizerBase) -> None:
    """Two requests with the same schema do not share their place in it."""
    first, second = grammars.matcher(SCHEMA), grammars.matcher(SCHEMA)
    (brace,) = tokenizer("{")["input_ids"]
    assert first.consume_token(brace)
    assert second.consume_token(brace)
    assert not first.consume_token(brace)


def test_the_memory_of_grammars_is_bounded(grammars: Grammars) -> None:
    """Callers with ever new schemas fill nothing."""
    for at in range(50):
        grammars.matcher({"const": at})
    assert len(grammars._compiled) <= 32


@pytest.mark.parametrize("schema", [{"type": "string", "not": {"const": "a"}}, {"type": "string", "pattern": "(?=a)b"}])
def test_a_schema_that_cannot_guide_is_refused(grammars: Grammars, schema: dict[str, Any]) -> None:
    """With the grammar's own words."""
    with pytest.raises(RequestError, match=r"^response_format: "):
        grammars.matcher(schema)


def test_a_token_against_the_grammar_is_a_failure(grammars: Grammars, tokenizer: PreTrainedTokenizerBase) -> None:
    """It cannot happen; if it does, nobody gets half an answer."""
    guide = Guide(grammars.matcher(SCHEMA), prompt_length=0)
    with pytest.raises(EngineFailed):
        guide(torch.tensor([tokenizer("x")["input_ids"]]), torch.zeros((1, 272)))


def test_the_recorder_keeps_what_the_model_said() -> None:
    """Log-probabilities of the scores as they came, which pass unchanged."""
    recorder = Recorder()
    scores = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.bfloat16)
    assert recorder(torch.zeros((1, 1)), scores) is scores
    assert recorder.last is not None
    assert recorder.last.exp().sum().item() == pytest.approx(1)


def test_the_feed_skips_the_prompt() -> None:
    """Then every token comes with its log-probability."""
    steps: list[Step] = []
    recorder = Recorder()
    feed = Feed(recorder, steps.append)
    feed.put(torch.tensor([[1, 2, 3]]))
    recorder(torch.zeros((1, 1)), torch.tensor([[0.0, 0.0]]))
    feed.put(torch.tensor([1]))
    feed.end()
    assert [step.token_id for step in steps] == [1]
    assert steps[0].logprob == pytest.approx(-0.6931, abs=1e-3)


def test_the_stopper_stops_once_told() -> None:
    """All sequences of the batch."""
    stop = threading.Event()
    stopper = Stopper(stop)
    ids = torch.zeros((2, 3))
    assert stopper(ids, ids).tolist() == [False, False]
    stop.set()
    assert stopper(ids, ids).tolist() == [True, True]


def test_characters_of_several_tokens_come_whole(grammars: Grammars, tokenizer: PreTrainedTokenizerBase) -> None:
    """Held back until complete; what is cut off is replaced, never wrong."""
    text = "aö😀walk"
    ids = tokenizer(text)["input_ids"]
    speller = Speller(grammars.tokenizer)
    pieces = [speller.piece(Step(token, 0.0)) for token in ids]
    assert [piece.text for piece in pieces] == ["a", "", "ö", "", "", "", "😀", "walk"]
    assert b"".join(piece.token.spelled for piece in pieces if piece.token) == text.encode()
    assert speller.rest() == ""
    cut = Speller(grammars.tokenizer)
    assert cut.piece(Step(ids[1], 0.0)).text == ""
    assert cut.rest() == "\ufffd"
