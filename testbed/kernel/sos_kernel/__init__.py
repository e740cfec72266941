"""Scenarios of the testbed on the kernel's Open vSwitch: a Debian kernel in qemu, over the file system of this machine.

| module | role |
|---|---|
| `cli` | parses the arguments, tests one kernel after the other, prints the results |
| `debian` | chooses, downloads and unpacks a kernel package with apt, without a change to the machine's package lists |
| `initramfs` | packs the modules and `init.sh`, which mount the machine's file system in the virtual machine |
| `machine` | pure: command line of qemu, accelerators with their time factors, settings that `guest.sh` reads |
| `boot` | runs qemu within its time limit, prints the guest's lines, falls back from KVM to TCG |
| `scenarios` | pure: reads `scenarios.txt`, the list of selected tests |
| `report` | pure: judges the guest's JUnit report |
"""
