"""Events, claims and locks, which the processes of a run and of a machine share."""
