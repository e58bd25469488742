//! Tests of drbdsetup: `golden` compares the configuration in force with what real nodes printed,
//! `commands` runs command lines against a scripted engine.

mod commands;
mod golden;
