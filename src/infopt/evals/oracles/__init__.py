"""Other people's implementations as a yardstick: what they reach on our model and our text.

    make oracles

Every oracle runs in an environment of its own, since it demands other versions than infopt does.
infopt hands it a model folder and token ids, and writes what it reached to a small JSON file with
the versions and the digests of everything that went in; tests read that file and compare.

A new oracle is one file ``oracle_<name>.py`` here, one ``<name>.txt`` with its requirements in
``envs/oracles``, and a line in :data:`infopt.evals.oracles.run.ORACLES`.
"""
