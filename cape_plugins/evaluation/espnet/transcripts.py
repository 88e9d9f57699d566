"""From token ids to text and back, by the tokenizer that a model was trained with."""

import argparse
from collections.abc import Sequence

from espnet2.text.build_tokenizer import build_tokenizer
from espnet2.text.cleaner import TextCleaner
from espnet2.text.token_id_converter import TokenIDConverter


class Transcripts:
    """Makes references and hypotheses comparable.

    Args:
        train_args: of the checkpoint's config.yaml: token_list, token_type, bpemodel, cleaner,
            non_linguistic_symbols.

    Raises:
        ValueError: the tokenizer cannot be built.
    """

    def __init__(self, train_args: argparse.Namespace) -> None:
        given = vars(train_args)
        token_type = given.get("token_type")
        if token_type is None or given.get("token_list") is None:
            raise ValueError("its config.yaml has no token_type or no token_list")
        symbols = _unless_none(given.get("non_linguistic_symbols"))
        try:
            self.converter = TokenIDConverter(given["token_list"])
            self.tokenizer = build_tokenizer(
                token_type,
                bpemodel=_unless_none(given.get("bpemodel")),
                non_linguistic_symbols=symbols,
                # asr.sh too leaves them out when it scores
                remove_non_linguistic_symbols=symbols is not None and token_type != "bpe",
                g2p_type=given.get("g2p"),
            )
            self.cleaner = TextCleaner(_unless_none(given.get("cleaner")))
        except (RuntimeError, OSError, ValueError) as error:
            raise ValueError(f"its tokenizer ({token_type}) cannot be built: {error}") from error

    def reference(self, text: str) -> str:
        """A transcript as ESPnet's training and scoring see it: cleaned, one space between words.

        Non-linguistic symbols are left out, for word and character tokens.
        """
        text = self.cleaner(text)
        if getattr(self.tokenizer, "non_linguistic_symbols", None):
            text = self.tokenizer.tokens2text(self.tokenizer.text2tokens(text))
        return " ".join(text.split())

    def hypothesis(self, ids: Sequence[int]) -> str:
        """The text of token ids (no blanks), as ``asr_inference`` writes it.

        Non-linguistic symbols are left out, as in references.
        """
        dropped = getattr(self.tokenizer, "non_linguistic_symbols", ())
        tokens = [t for t in self.converter.ids2tokens(ids) if t not in dropped]
        return " ".join(self.tokenizer.tokens2text(tokens).split())

    def unknown(self, text: str) -> tuple[int, list[str]]:
        """The number of tokens of a transcript, and those that the token list does not have."""
        tokens = self.tokenizer.text2tokens(self.cleaner(text))
        known = self.converter.token2id
        return len(tokens), [token for token in tokens if token not in known]


def _unless_none(value: object) -> object:
    return None if value == "none" else value  # ESPnet's recipes write it so
