# LLaMA-60m at 1x: BF16 weights, BF16 compute, two GPUs. From the README of the reference implementation.
torchrun --standalone --nproc_per_node=2 main.py \
    --model_config llama_configs/llama_60m.json --dtype bfloat16 \
    --local_path_train "${TRAIN_DATA}" --local_path_val "${VAL_DATA}" --max_length 256 \
    --batch_size 256 --total_batch_size 512 \
    --num_training_steps 10000 --scheduler_effective_training_steps 0 \
    --optimizer m_adam --m_adam_norm_type none \
    --lr 8e-5 --scheduler linear --warmup_steps 2000 --min_lr_ratio 0.0 \
    --m_adam_lr_e 0.004 --m_adam_sched_e logcosine --m_adam_logcosine_alpha_e 3.0 \
    --m_adam_total_steps_e 10000 --m_adam_warmup_steps_e 2000 --m_adam_min_lr_ratio_e 0.0 \
    --m_adam_tie_e_to_m false \
    --m_adam_beta1 0.87 --m_adam_beta2 0.98 --m_adam_eps 1e-20 \
    --m_adam_weight_decay_m 0.1 --m_adam_weight_decay_e 0.01 --max_grad_norm 1.0 \
    --eval_every 10000 --num_eval_tokens 10000000 \
    --save_every 10000 --save_dir checkpoints/m_adam_bf16_60m_1x \
    --workers 1 --seed 0 --use_flash_attention --use_liger_kernel \
    --wandb_project "M+Adam" --wandb_entity "YOUR_WANDB_ENTITY" \
    --wandb_tag "60M-mAdam-1xChinchilla-BF16" --name "m_adam_bf16_60m_1x"
