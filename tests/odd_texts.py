"""Texts that tell tokenizers apart."""

from __future__ import annotations

TEXTS = (
    "Hello world",
    "  two  spaces   three    four     five ",
    "\n\n\nlines\r\n\r\nmore\n \n  \n\ttabs\t\t\tend\n",
    "I'm can't WE'LL they'd I'VE 'twas rock'n'roll it's IT'S",
    "0 1 12 123 1234 12345 123456 1,234.56 1e-7 0x1F 12th ½ ²³ Ⅷ ٣٤٥",
    "camelCase PascalCase UPPERCase snake_case kebab-case HTTPServer iOS",
    "def f(x):\n    return {'a': [1, 2], \"b\": x**2}  # comment\n\n\nclass A:\n\tpass\n",
    '<html><body class="x">&amp;</body></html>/* c */ // d\\n `code` ```py\n```',
    "Größe café naïve Straße ĄĆĘ Ελληνικά Русский язык עברית العربية हिन्दी ไทย",
    "cafe\u0301 e\u0301 A\u030a \u1e9b\u0323",
    "你好，世界！ こんにちは カタカナ 한국어 테스트 中文123英文abc",
    "😀😁 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪 ☺️ ✓ → ∑∫√ ©®™ “quotes” ‘single’ — – …",
    "!!!???...,,,;;; $5.00 €10 100% a+b=c <=> ~^|` @user #tag (x) [y] {z}",
    " leading",
    "trailing ",
    " ",
    "\n",
    "\u00a0nbsp\u2003em\u3000wide\u200bzero\u2028line",
    "<|im_start|>user\nhi<|im_end|>",
    "a" * 40 + "b" * 7 + " " * 33 + "x" + "-" * 50 + "=" * 9 + "\n" * 5,
    "https://example.org/path?q=1&r=%20#frag user@example.org 2024-01-31T12:00:00Z",
    "ＡＢＣ１２３ ﬁ ﬂ ǅ ʼn",
    "x\u0000y\u0001z\u007f",
)
