"""Where jobs run: checks a place, sends chunks there, tells what became of them, cancels them."""
