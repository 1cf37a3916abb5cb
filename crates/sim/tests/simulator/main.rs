//! The simulator's tests, one file a subject, in one program: each program of tests links the whole
//! project. `cargo test -p meridian-sim --test simulator looks::` runs those of one file.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests, too.

mod access;
mod backups;
mod baselines;
mod causal;
mod causal_baselines;
mod cluster;
mod configuration;
mod contenders;
mod crash_points;
mod cut_off;
mod cuts;
mod disorder;
mod drain;
mod eunomia;
mod exhaustive_multicast;
mod exhaustive_paxos;
mod explained;
mod explained_requests;
mod explained_updates;
mod fences;
mod files;
mod full_disk;
mod grants;
mod hermes;
mod hermes_explored;
mod host_bugs;
mod keys_baselines;
mod latency;
mod left_behind;
mod linearizable;
mod locks;
mod looks;
mod membership;
mod memory;
mod mutations;
mod nodes;
mod open_files;
mod outside;
mod paxos;
mod paxos_mutations;
mod paxos_scenarios;
mod primcast;
mod quotas;
mod region_lost;
mod register;
mod salvage;
mod scenarios;
mod service;
mod sessions;
mod timeline;
mod told;
