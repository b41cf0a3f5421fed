"""Beginnings of texts of many kinds, for comparisons with other engines."""

PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):",
    "Once upon a time",
    "Water boils at",
    "The three laws of robotics are",
    "In 1969, humans first",
    "Dear Sir or Madam,",
    "Photosynthesis is the process by which",
    "1, 1, 2, 3, 5, 8,",
    "To be, or not to be,",
    "The quick brown fox",
    "Ingredients: 2 eggs, 100 g flour,",
    "SELECT name FROM users WHERE",
    "Die Hauptstadt von Deutschland ist",
    "The mitochondria is",
    "Q: What is 12 times 12? A:",
    "<html><head><title>",
    "My favourite book is",
    "Climate change affects",
    "In the beginning",
]
