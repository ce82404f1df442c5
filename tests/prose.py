"""Whether the documents read easily: `python -m tests.prose` prints a row for each page, and fails on long sentences.

A sentence has at most 30 words and a page fewer than 20 in the mean. Code, tables and headings do not count. Pages of
the site's navigation have at most 25,000 words together, tables included.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from statistics import mean

ROOT = Path(__file__).parents[1]
LONGEST, MEAN, WORDS = 30, 20, 25_000
CHAINS = re.compile(r"\b(?:that which|what it makes of|those that|those which)\b", re.I)


def pages() -> list[Path]:
    """The pages of the navigation, and README."""
    named = re.findall(r"([\w./-]+\.md)\s*$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    return [ROOT / "README.md", *(ROOT / "docs" / name for name in named)]


def prose(text: str) -> str:
    """The running text of a page: a blank line between what are not sentences of one paragraph."""
    text = re.sub(r"^```.*?^```$", "\n", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<[^>]*>", "", re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL))
    text = re.sub(r"^(?:\||#|:::|    |!\[).*$", "\n", text, flags=re.MULTILINE)
    text = re.sub(r"^\s*(?:[-*]|\d+\.) ", "\n", text, flags=re.MULTILINE)
    text = re.sub(r"`[^`]*`", "code", text)
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text).replace("**", "")


def sentences(text: str) -> list[str]:
    """The sentences of running text, paragraph by paragraph.

    >>> sentences("One idea. Another one, e.g. 2.5 words!\\n\\nA last one")
    ['One idea.', 'Another one, e.g. 2.5 words!', 'A last one']
    """
    found = []
    for paragraph in re.split(r"\n\s*\n", text):
        joined = " ".join(paragraph.split())
        found += re.split(r"(?<=[.!?:])\s+(?=[A-Z\"(]|code)", joined)
    return [sentence for sentence in found if sentence]


def main() -> None:
    """Prints a row for each page, then what is too long."""
    total, wrong = 0, []
    print(f"{'words':>6} {'mean':>5} {'most':>5}  page")
    for page in pages():
        text = page.read_text()
        name = page.relative_to(ROOT)
        told = sentences(prose(text))
        lengths = [len(sentence.split()) for sentence in told] or [0]
        total += len(text.split()) if page.parent != ROOT else 0
        print(f"{len(text.split()):6,} {mean(lengths):5.1f} {max(lengths):5}  {name}")
        wrong += [f"{name}: {len(one.split())} words: {one}" for one in told if len(one.split()) > LONGEST]
        wrong += [f"{name}: {found[0]}" for found in CHAINS.finditer(" ".join(told))]
        wrong += [f"{name}: {mean(lengths):.1f} words in the mean sentence"] if mean(lengths) >= MEAN else []
    wrong += [f"{total:,} words in the navigation"] if total > WORDS else []
    print(f"{total:6,} words in the navigation", *wrong, sep="\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
