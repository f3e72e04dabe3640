"""Text of tokens with a byte-level tokenizer, as models have it, and end tokens of folders."""

import json
import random

import pytest

from rose.adapters.hugging_face import load_eos_token_ids, load_tokenizer
from rose.adapters.text import StreamedText, decoded, encoded, templated
from rose.errors import InvalidArgument

tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")

SPECIAL = ["<s>", "<|end|>", "<tool_call>"]
TEXTS = ["plain words and plain words", "äöü€ 中文 👍🏽", "x  y\n\n\tz", "12 < 34"]
ALPHABET = "a \n中é👍🏽\ufffdz"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a trained byte-level BPE, whose text pipeline adds a BOS."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=SPECIAL,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(TEXTS, trainer)
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    one = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="<|end|>"
    )
    one.chat_template = (
        "{% if messages[0].role == 'tool' %}{{ raise_exception('no tool may begin') }}{% endif %}"
        "<s>{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"
    )
    folder = tmp_path_factory.mktemp("tokenizer")
    one.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder):
    return load_tokenizer(folder)


def streamed(tokenizer, ids, size, *, skip: bool) -> list[str]:
    stream = StreamedText(tokenizer, skip_special_tokens=skip)
    return [
        stream.add(ids[at : at + size], is_last=at + size >= len(ids))
        for at in range(0, len(ids), size)
    ]


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("skip", [False, True])
def test_pieces_join_to_the_text_of_all_tokens(tokenizer, size, skip) -> None:
    draw = random.Random(size)
    for _ in range(150):
        if draw.random() < 0.5:
            ids = [draw.randrange(300) for _ in range(draw.randrange(1, 120))]
        else:
            ids = tokenizer.encode("".join(draw.choice(ALPHABET) for _ in range(40)))
        pieces = streamed(tokenizer, ids, size, skip=skip)
        assert "".join(pieces) == decoded(tokenizer, ids, skip_special_tokens=skip)
        assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=skip)


def test_a_character_comes_whole_and_the_text_before_it_at_once(tokenizer) -> None:
    ids = encoded(tokenizer, "az🦆b", add_special_tokens=False)
    pieces = [one for one in streamed(tokenizer, ids, 1, skip=True) if one]
    assert pieces == ["a", "z", "🦆", "b"]
    # The first bytes of the character and the letter before it come in one piece.
    stream = StreamedText(tokenizer, skip_special_tokens=True)
    assert stream.add(ids[:3]) == "az"
    assert stream.add(ids[3:]) == "🦆b"


def test_a_character_of_byte_tokens_comes_whole() -> None:
    """Some vocabularies have a token for each byte that no other token covers."""
    vocab = {"a": 0, **{f"<0x{byte:02X}>": 1 + byte for byte in range(256)}}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, [], byte_fallback=True))
    made.decoder = tokenizers.decoders.Sequence(
        [tokenizers.decoders.ByteFallback(), tokenizers.decoders.Fuse()]
    )
    one = transformers.PreTrainedTokenizerFast(tokenizer_object=made)
    ids = [token for char in "a🦆中🦆a" for token in one.encode(char)]
    assert len(ids) == 13
    pieces = streamed(one, ids, 1, skip=True)
    assert [piece for piece in pieces if piece] == ["a", "🦆", "中", "🦆", "a"]


def test_bytes_that_never_become_a_character_are_not_held_for_ever(tokenizer) -> None:
    (byte,) = tokenizer.convert_tokens_to_ids(["ÿ"])  # the byte 0xFF, which no character has
    stream = StreamedText(tokenizer, skip_special_tokens=True)
    pieces = [stream.add([byte]) for _ in range(300)]
    assert len("".join(pieces)) >= 300 - 64
    assert len(stream._ids) <= 64
    assert "".join(pieces) + stream.add((), is_last=True) == "\ufffd" * 300


def test_a_prompt_has_one_bos(tokenizer) -> None:
    plain = encoded(tokenizer, "az", add_special_tokens=False)
    assert encoded(tokenizer, "az", add_special_tokens=True) == [0, *plain]
    assert encoded(tokenizer, "<s>az", add_special_tokens=True) == [0, *plain]
    assert encoded(tokenizer, "<s>az", add_special_tokens=False) == [0, *plain]
    said = templated(tokenizer, [{"role": "user", "content": "az"}], {})
    assert said.count(0) == 1


def test_the_error_of_a_template_is_the_clients(tokenizer) -> None:
    with pytest.raises(InvalidArgument, match="refuses the messages: no tool may begin"):
        templated(tokenizer, [{"role": "tool", "content": "az"}], {})
    for read in (
        lambda text: encoded(tokenizer, text, add_special_tokens=True),
        lambda text: templated(tokenizer, [{"role": "user", "content": text}], {}),
    ):
        with pytest.raises(InvalidArgument, match="got half of a surrogate pair"):
            read("\ud800")


def test_end_tokens_come_from_the_tokenizer_and_from_both_configs(
    folder, tokenizer, tmp_path
) -> None:
    assert load_eos_token_ids(folder, tokenizer) == (1,)
    assert load_eos_token_ids(tmp_path) == ()
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 1]}))
    (tmp_path / "config.json").write_text(
        json.dumps({"eos_token_id": None, "text_config": {"eos_token_id": 7}})
    )
    assert load_eos_token_ids(tmp_path) == (5, 1, 7)
    assert load_eos_token_ids(tmp_path, tokenizer) == (1, 5, 7)
    (tmp_path / "config.json").write_text('{"eos_token_id": "x"}')
    with pytest.raises(InvalidArgument, match="eos_token_id must be numbers >= 0, got 'x'"):
        load_eos_token_ids(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InvalidArgument, match=r"config.json must be a readable JSON file"):
        load_eos_token_ids(tmp_path)
