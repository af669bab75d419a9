"""What a cache holds has names that users and other rooms know it by."""

from __future__ import annotations

from pytest_autotune.cache.model import Device, Problem, library_of


def test_a_problem_is_named_by_tuner_and_kernel_and_knows_the_library_of_its_tuner() -> None:
    problem = Problem("inductor.config", "triton_poi_fused_add", (), Device("CPU", "avx512"))

    assert problem.name == "inductor.config:triton_poi_fused_add"
    assert str(problem) == problem.name
    assert problem.library == library_of("inductor.config") == library_of("inductor") == "inductor"
