"""Lesson on inference, 3.4.8, line 333: llama.cpp's ./main -m model.gguf -p "Hello" -n 100.

What differs: the program is `octavo generate`; the flags are the same.
"""

import argparse
import subprocess
import sys


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2", help="an alias, or a .gguf file")
    parser.add_argument("--max-tokens", type=int, default=8)
    options = parser.parse_args()

    flags = ["-m", options.model, "-p", "Hello", "-n", str(options.max_tokens)]
    subprocess.run([sys.executable, "-m", "octavo", "generate", *flags], check=True)


if __name__ == "__main__":
    main()
