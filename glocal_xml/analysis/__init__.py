"""Studies of the papers on any data: layer sweeps, divergences, ablation and band tables, figures."""
