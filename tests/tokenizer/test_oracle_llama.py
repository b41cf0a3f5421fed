"""llama.cpp reads the same file: the same ids, the same text."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.tokenizer import Tokenizer

TEXTS = [
    "Hello world",
    "I'll say: it's 1234567 o'clock, isn't it?",
    "  two  spaces,\ttabs \n\n newlines\r\n  \n",
    "漢字かな交じり文と Ελληνικά и русский 👩‍👩‍👧 é",
    "def f(x):\n    return x**2  # ½ Ⅻ ٣\n",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
]


@pytest.mark.oracle
def test_ids_and_text_equal_llama_cpp(smollm2_path: Path, smollm2_tokenizer: Tokenizer) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    theirs = llama_cpp.Llama(str(smollm2_path), vocab_only=True, verbose=False)
    for text in TEXTS:
        ids = smollm2_tokenizer.encode(text)
        assert ids == theirs.tokenize(text.encode(), add_bos=False, special=True), text
        if "<|" not in text:
            assert smollm2_tokenizer.decode(ids).encode() == theirs.detokenize(ids)
