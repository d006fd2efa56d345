"""Texts that the reference numbers are made of: varied in language, script, whitespace, digits, code, special tokens."""


def chat(user: str, system: str = "You are a helpful AI assistant named SmolLM, trained by Hugging Face") -> str:
    """One user turn in SmolLM2's chat format, opened for the assistant."""
    return f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n"


PROMPTS = [
    chat("What is the capital of France?"),
    chat("Write a haiku about the sea."),
    chat("Explain in two sentences why the sky is blue."),
    chat("List the first ten prime numbers."),
    chat("Translate to Spanish: The library opens at nine."),
    chat("Give me a recipe for pancakes.", system="You are a cook. Answer in numbered steps."),
    chat("Who wrote Hamlet, and when?"),
    chat("Fix this code:\n```python\ndef add(a, b)\n    return a + b\n```"),
    chat("Summarise: A train left the station at noon. It was late by ten minutes, and nobody on board minded."),
    "Once upon a time, in a village by a river,",
    "The quick brown fox",
    "def fibonacci(n):\n",
    "In 1969, the first",
    "Water freezes at 0 degrees Celsius and",
    "import numpy as np\n\n# The mean of each row of a matrix\n",
    "Dear Sir or Madam,\n\nI am writing to",
    "Q: What is 12 times 12?\nA:",
    "The three laws of thermodynamics are:\n1.",
    "SELECT name, count(*) FROM orders",
    "Die Hauptstadt von Deutschland ist",
]
"""Twenty prompts for greedy decoding, none of which meets a near tie (see `NARROWEST_LEAD`)."""

_WORDS = [
    "", " ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", " \n ", "    indented", "trailing   ", "a",
    "A", "é", "ß", "ø", "ﬁ", "Ⅷ", "½", "²",
    "hello", " hello", "Hello, world!", "HELLO WORLD", "hello  world", "don't",
    "I'll we've they're he'd it's I'm", "DON'T", "l’été",
    "0", "7", "42", "2024", "3.14159", "1,000,000", "0x1F", "1e-10", "a1b2c3", "v1.2.3", " 12 34",
    "٣٤٥", "１２３", "第3章", "10%",
    "naïve café", "Ünïcödé", "Ελληνικά", "Привет, мир!", "你好，世界", "こんにちは世界", "안녕하세요",
    "مرحبا بالعالم", "שלום עולם", "नमस्ते दुनिया", "สวัสดี",
    "🙂", "👩‍👩‍👧‍👦", "🇫🇷🇩🇪", "a🙂b", "🙂🙂🙂", "e\u0301", "\u200b", "\ufeffbom", "\u00a0nbsp\u00a0",
    "\u2028line\u2029para", "\u3000wide",
    "\x00", "\x7f", "\x1b[31mred", "�", "𝔘𝔫𝔦", "𐍈", "a\u0000b",
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<repo_name>", "<file_sep>x",
    "<|im_start|>user\nHi<|im_end|>", "a<|im_end|>b", " <|im_end|> ",
    "<|im_start|", "<|im_end|>>", "<empty_output>", "<|unknown|>", "<jupyter_code>print(1)<jupyter_output>1",
    "def f(x):\n    return x ** 2\n", "for (int i = 0; i < n; ++i) {\n\tsum += a[i];\n}",
    "SELECT * FROM t WHERE a='b';", "<html><body></body></html>",
    '{"a": [1, 2.5, null], "b": "c\\n"}', "#!/bin/sh\nset -eu\n", "x = y == z != w", "a->b::c",
    "/usr/lib/python3", "C:\\Windows\\System32",
    "https://example.org/a?b=c&d=%20e", "me@example.org", "$100.00", "50°C", "±5", "a*b/c-d+e",
    "((()))", "[[[]]]", "...", "…", "—", "!!!???", "'\"`",
    "##### Title", "- item\n- item\n  - nested", "| a | b |\n|---|---|", "\\frac{a}{b}", "~~~",
    "__init__", "snake_case_name", "camelCaseName",
    "antidisestablishmentarianism", "Llanfairpwllgwyngyll", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "ababababababab", "zzz", "The", " the", "  the", "\nthe",
    "a b c d e", "one\ttwo\t\tthree", "line one\nline two\r\nline three\rline four",
    "end of sentence. Start", "what?No space", "Mr. Smith's", "U.S.A.",
    "e.g., i.e., etc.", "re-enter", "co-op", "state-of-the-art", "and/or", "2nd 3rd 4th",
    "10:30pm", "2024-11-29T18:00:00Z", "+49 (0)30 1234567",
    "mixed日本語and English", "русский English 中文", "Zürich–Genève", "ŁÓDŹ", "İstanbul", "ǅ", "ﷺ",
    "ｈｅｌｌｏ", "\u202eabc", "a\u0308\u0323",
]  # fmt: skip

TOKENIZER_TEXTS = [
    *_WORDS,
    *PROMPTS,
    *(" " * spaces + "x" for spaces in (4, 7, 8, 9, 15, 16, 17, 33)),
    *("\n" * lines + "x" for lines in (2, 3, 4, 5)),
    *(str(7**power) for power in (3, 9, 21, 40)),
]
"""About two hundred strings whose token ids are kept."""
