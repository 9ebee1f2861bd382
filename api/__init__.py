"""The web tier: stateless pods that submit jobs and let anyone read any job's stream."""
