"""`python -m launch.doctor` answers the doctor of another host; people call `./run.sh doctor`."""

from launch.doctor.talk import main

main()
