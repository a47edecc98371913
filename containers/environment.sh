# Environment of both images. Apptainer reads it without the host's variables, which it adds afterwards, but for those
# that are set here: so PYTHONPATH of the host stays out (--env PYTHONPATH=... still gets in), and what depends on the
# host's variables, the caches, is decided when Python starts (containers/image_caches.py).
export PATH=/opt/mpadam/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PYTHONNOUSERSITE=1 PYTHONPATH= PYTHONSTARTUP= VIRTUAL_ENV=
export LC_ALL=C.UTF-8
