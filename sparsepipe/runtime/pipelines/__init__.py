"""Several pipelines that train copies of one network: who takes which minibatch, and whose weights meet whose."""
