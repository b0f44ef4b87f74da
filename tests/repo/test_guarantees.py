"""The README's guarantees, each with the tests that prove it; a test that is renamed or removed is missed here."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PROOFS = {
    "No process of a job outlives the job": [
        "tests/lifecycle/test_corpus_trees.py::test_a_daemon_with_a_false_name_ends_with_its_job",
        "tests/lifecycle/test_corpus_trees.py::test_escalation_does_not_stop_when_the_leader_is_gone",
        "tests/lifecycle/test_corpus_trees.py::test_a_kill_converges_on_processes_that_replace_themselves",
        "tests/lifecycle/test_corpus_trees.py::test_a_process_in_the_d_state_is_killed_and_asking_never_blocks",
        "tests/hostile/test_floods.py::test_a_fork_bomb_is_held_at_the_limit_of_processes",
        "tests/hostile/test_floods.py::test_frozen_and_stopped_processes_go_with_the_kill",
        "tests/kernel/test_run.py::test_a_deadline_ends_a_program_that_ignores_every_signal",
        "tests/rootless/test_rootless.py::test_a_daemon_dies_with_its_job",
        "tests/vm/test_controllers.py::test_nothing_is_left_of_a_fork_bomb",
    ],
    "No job outlives the executor": [
        "tests/lifecycle/test_ending.py::test_closing_ends_every_job_and_records_it",
        "tests/lifecycle/test_supervisor_death.py::test_no_process_of_a_running_job_outlives_the_supervisor",
        "tests/lifecycle/test_supervisor_death.py::test_no_process_of_a_job_that_is_being_launched_outlives_the_supervisor",
        "tests/lifecycle/test_supervisor_death.py::test_the_control_without_a_sandbox_does_outlive_its_parent",
        "tests/lifecycle/test_fork_server_death.py::test_no_process_of_any_job_outlives_the_fork_server",
        "tests/lifecycle/test_fork_server_death.py::test_no_process_of_a_job_that_is_being_launched_outlives_the_fork_server",
        "tests/rootless/test_rootless.py::test_no_process_outlives_a_supervisor_that_was_killed",
    ],
    "Every byte up to the cap is on disk and readable": [
        "tests/lifecycle/test_corpus_output.py::test_a_flood_costs_its_cap_and_nobody_else",
        "tests/lifecycle/test_corpus_output.py::test_the_last_burst_is_there_at_the_moment_the_state_is_final",
        "tests/lifecycle/test_corpus_output.py::test_pollers_with_places_of_their_own_get_each_byte_once",
        "tests/lifecycle/test_corpus_output.py::test_bytes_that_are_no_text_are_kept_as_they_are_and_read_as_text",
        "tests/lifecycle/test_supervisor_death.py::test_what_was_banked_before_the_supervisor_died_is_readable",
        "tests/unit/bank/test_bank.py::test_an_account_is_readable_after_a_restart",
        "tests/unit/bank/test_streams.py::test_one_byte_more_is_refused_and_exactly_the_cap_is_kept",
        "tests/kernel/test_run.py::test_more_output_than_the_cap_ends_the_job_with_exactly_the_cap_kept",
    ],
    "A settled record never changes": [
        "tests/unit/jobs/test_store.py::test_the_database_itself_refuses_to_change_a_settled_record",
        "tests/unit/jobs/test_store.py::test_acknowledgement_and_retention_are_the_only_changes",
        "tests/unit/jobs/test_registry.py::test_a_settled_state_is_seen_after_its_commit_and_not_before",
        "tests/unit/jobs/test_registry.py::test_of_many_threads_that_settle_one_wins_and_everybody_is_told_once",
        "tests/unit/jobs/test_crash.py::test_sigkill_at_any_moment_loses_nothing_that_was_committed",
        "tests/lifecycle/test_supervisor_death.py::test_lost_jobs_are_recorded_whole",
        "tests/lifecycle/test_corpus_drivers.py::test_a_full_disk_under_bank_and_registry_loses_no_job",
    ],
    "A policy can only be narrowed": [
        "tests/unit/policy/test_narrowing.py::test_narrowing_refuses_or_gives_what_is_within",
        "tests/unit/policy/test_narrowing.py::test_narrowing_twice_stays_within_the_first",
        "tests/unit/policy/test_narrowing.py::test_every_field_has_an_order",
        "tests/unit/policy/test_admission.py::test_a_longer_timeout_is_refused_with_what_would_do",
        "tests/contracts/test_git_toolset.py::test_registering_git_widens_nothing",
    ],
    "What the host cannot enforce is refused or named": [
        "tests/unit/policy/test_compile.py::test_every_limit_without_any_controller_is_named_and_never_silent",
        "tests/unit/policy/test_compile.py::test_a_required_mechanism_that_the_host_lacks_is_refused_with_what_holds_and_the_way_out",
        "tests/kernel/test_paths.py::test_a_writable_place_that_cannot_be_idmapped_is_refused_with_the_way_out",
        "tests/kernel/test_doctor.py::test_a_host_without_user_namespaces_is_told",
        "tests/vm/test_controllers.py::test_the_controllers_are_in_force_and_named",
    ],
    "Nothing of the host that the policy does not name is visible inside": [
        "tests/hostile/test_kernel_files.py::test_what_is_mounted_is_what_the_plan_says_and_nothing_of_the_host_is_writable",
        "tests/hostile/test_kernel_files.py::test_of_the_host_there_is_no_process_no_sysfs_no_cgroup_and_no_interface",
        "tests/hostile/test_corpus_isolation.py::test_jobs_that_run_at_once_see_none_of_the_others",
        "tests/hostile/test_corpus_isolation.py::test_no_secret_of_the_supervisor_reaches_a_job_or_the_record",
        "tests/hostile/test_corpus_isolation.py::test_no_descriptor_of_a_careless_supervisor_reaches_any_of_twenty_jobs",
        "tests/hostile/test_corpus_isolation.py::test_no_service_of_the_host_or_beyond_can_be_reached",
        "tests/hostile/test_ways_into_the_kernel.py::test_keys_of_the_supervisor_are_not_in_reach",
        "tests/hostile/test_corpus_isolation.py::test_jobs_find_nothing_that_other_jobs_left",
        "tests/hostile/test_host_paths.py::test_no_path_brings_the_records_of_all_jobs_into_sight",
    ],
    "A hostile job costs its own budget only": [
        "tests/lifecycle/test_many_jobs.py::test_a_flood_does_not_hold_up_what_is_asked_meanwhile",
        "tests/lifecycle/test_corpus_output.py::test_a_flood_costs_its_cap_and_nobody_else",
        "tests/unit/bank/test_streams.py::test_a_tail_is_the_last_cap_bytes_and_costs_little_more_disk",
        "tests/hostile/test_corpus_limits.py::test_spinning_on_every_core_starves_neither_supervisor_nor_jobs",
        "tests/hostile/test_corpus_limits.py::test_a_child_over_the_memory_ends_the_job_by_name_and_no_other",
        "tests/hostile/test_corpus_limits.py::test_no_scratch_place_takes_more_than_its_size",
        "tests/hostile/test_corpus_limits.py::test_descriptors_used_up_by_four_jobs_are_missed_by_nobody_else",
        "tests/hostile/test_floods.py::test_a_bomb_in_one_job_leaves_the_neighbour_its_own_limit",
        "tests/vm/test_corpus_limits.py::test_each_job_gets_its_share_of_the_processors_and_no_more",
    ],
}


def test_the_guarantees_of_the_readme_are_these() -> None:
    (section,) = re.findall(r"\n## Guarantees\n(.*?)\n## ", (ROOT / "README.md").read_text(), re.DOTALL)
    guarantees = re.findall(r"^\d\. (.*)$", section, re.MULTILINE)
    assert len(guarantees) == len(PROOFS) == 8
    assert [text for text, begins in zip(guarantees, PROOFS, strict=True) if not text.startswith(begins)] == []


@pytest.mark.parametrize("guarantee", PROOFS)
def test_each_test_that_proves_a_guarantee_exists(guarantee: str) -> None:
    missing = []
    for node in PROOFS[guarantee]:
        path, _, name = node.partition("::")
        source = ROOT / path
        functions = ast.parse(source.read_text()).body if source.exists() else []
        if not any(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name == name for each in functions):
            missing.append(node)
    assert missing == []
