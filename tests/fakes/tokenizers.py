"""Small tokenizers of the kinds that models have, for tests of what must hold for all of them."""

from collections.abc import Callable, Mapping

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

TEXTS = ["the answer is hello world", "Hello  world, 1 + 22 = 23\n\n", "naïve café 漢字", "<|im_start|> is no word"] * 4


def byte_level(*, add_prefix_space: bool = False, nfc: bool = False) -> Tokenizer:
    """As Qwen and Llama 3: bytes."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    made.decoder = decoders.ByteLevel()
    if nfc:
        made.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(  # type: ignore[no-untyped-call]
        vocab_size=320,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(TEXTS, trainer)
    made.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in ("<think>", "</think>")])
    made.add_special_tokens(["<|eot_id|>", "[INST]", "[/INST]", "</s>"])
    return made


def sentence_pieces() -> Tokenizer:
    """As Llama 2 and Mistral: words with a sign for the space before them, the first word of a text too."""
    made = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    trainer = trainers.BpeTrainer(vocab_size=200, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False)  # type: ignore[no-untyped-call]
    made.train_from_iterator(TEXTS, trainer)
    made.add_special_tokens(["[INST]", "[/INST]", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|eot_id|>"])
    return made


def words() -> Tokenizer:
    """Whole words, lower case, spaces dropped."""
    made = Tokenizer(models.WordLevel({"[UNK]": 0, "the": 1, "answer": 2, "hello": 3, "user": 4}, unk_token="[UNK]"))
    made.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()])
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens(["<|im_start|>", "<|im_end|>", "[INST]", "[/INST]", "</s>"])
    made.add_tokens([AddedToken("hello", normalized=True)])
    return made


def greedy() -> Tokenizer:
    """Added tokens that eat what stands next to them, or hold one another."""
    made = byte_level()
    made.add_tokens(
        [
            AddedToken("<|pad|>", lstrip=True, rstrip=True, normalized=False),
            AddedToken("<|im_end|>\n", normalized=False),
            AddedToken("world<|", normalized=False),
            AddedToken("answer", single_word=True, normalized=False),
        ]
    )
    return made


KINDS: Mapping[str, Callable[[], Tokenizer]] = {
    "bytes": byte_level,
    "bytes-nfc": lambda: byte_level(nfc=True),
    "bytes-prefix-space": lambda: byte_level(add_prefix_space=True),
    "sentence-pieces": sentence_pieces,
    "words": words,
    "greedy": greedy,
}
