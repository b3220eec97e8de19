"""Spark itself: sessions, Python workers, the class archive, warm-up, and what its errors mean."""
