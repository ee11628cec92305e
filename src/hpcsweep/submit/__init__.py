"""Points to jobs: packs what is not measured yet, and starts it one way or another."""
